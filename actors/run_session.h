/// The phases of one run, in order; `run_training` walks through them. Lives in the calling thread.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/launch.h"
#include "actors/node_process.h"

namespace troupe {

class RunSession {
 public:
  RunSession(caf::actor_system& system,
             RunSpec spec,
             const RunCallbacks& callbacks,
             const RunOptions& options);
  /// Takes down whatever is there.
  ~RunSession();

  Result<RunOutcome> run();

 private:
  struct Member {
    std::uint32_t process = 0;
    std::string name;                ///< "node n1 (pid 4711)"
    std::vector<std::string> nodes;  ///< of the cluster
    bool remote = false;
    caf::actor agent;
  };
  template <class Reply, class Message>
  std::future<Result<Reply>> ask(const Member& member, Seconds timeout, Message message);
  /// Waits; looks after child processes meanwhile.
  template <class Reply>
  Result<Reply> wait(const Member& member, std::future<Result<Reply>>& reply);
  /// The same message to all members, side by side.
  template <class Reply, class Message>
  Result<std::vector<Reply>> ask_all(Seconds timeout, const Message& message);

  Status open_nodes();
  Status open_door(const std::vector<std::string>& awaited);
  Status start_children();
  Status await_joins(const std::vector<std::string>& awaited);
  void send_document(const std::string& name, const std::string& text);
  Status measure();
  Status make_the_plan();
  Status settle();
  Status adopt();
  Status read_resume();
  Result<RunOutcome> train();
  void hear(const RunNews& news, RunOutcome& outcome);
  void compare_with_plan();
  void close();
  /// The first child that has ended, as an error; none: all run.
  std::optional<Error> dead_child();
  /// Adds what is known about ended children.
  Error explain(Error error);
  void event(const std::string& kind, const std::string& text);
  bool holds_stage(const Member& member) const;

  caf::actor_system& system_;
  RunSpec spec_;
  const RunCallbacks& callbacks_;
  const RunOptions& options_;
  caf::scoped_actor self_;
  std::vector<Member> members_;
  std::vector<NodeProcess> children_;
  caf::actor local_, door_, run_, data_, planner_;
  std::uint16_t door_port_ = 0;
  std::shared_ptr<TokenSource> tokens_;
  std::shared_ptr<const Plan> plan_;
  std::vector<DeviceHandle> devices_;
  std::uint64_t committed_ = 0;  ///< the last committed step; before the first: where to go on from
  std::uint64_t adam_steps_ = 0;
  std::uint64_t resumed_data_ = 0;  ///< fingerprint of the checkpoint's data; 0: none
  bool ended_ = false;
  bool closing_ = false;
  std::shared_ptr<const Error> failure_;
};

}  // namespace troupe
