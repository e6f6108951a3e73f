/// Keeps one stage: its parameters come from the seed or from a checkpoint. Steps do not pass here:
/// the device actor runs them.
#include <fmt/format.h>

#include <exception>

#include "actors/checkpoint/stage_state.h"
#include "actors/errors.h"
#include "actors/interfaces.h"

namespace troupe {
namespace {

struct StageFilled {
  std::shared_ptr<const Error> failure;
};

}  // namespace
}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StageFilled)

namespace troupe {
namespace {

struct StageState {
  StageState() {}
  static inline const char* name = "stage";
  std::shared_ptr<StageRunner> runner;
  std::shared_ptr<Device> hardware;
  caf::response_promise pending;
  Ready reply;
};

Status fill(Stage& stage, Stream& stream, const std::string& folder) {
  if (folder.empty()) {
    stage.initialize();
    return {};
  }
  CheckpointOptions options;
  options.verify = false;  // the run has compared all checksums before it sent the folder
  const auto checkpoint = Checkpoint::open(folder, options);
  if (!checkpoint) return checkpoint.error();
  stage.initialize();
  TROUPE_TRY(read_state(*checkpoint, stage));
  stage.weights_changed(stream);
  return {};
}

caf::behavior stage_actor(ActorOf<StageState>* self,
                          std::shared_ptr<StageRunner> runner,
                          std::shared_ptr<Device> hardware) {
  StageState& state = self->state;
  state.runner = std::move(runner);
  state.hardware = std::move(hardware);
  return {
      [&state, self](const FillStages& order) -> caf::result<Ready> {
        if (state.pending.pending())
          return to_caf(Error{ErrorCode::internal, "the stage is being filled already"});
        state.pending = self->make_response_promise();
        state.reply.epoch = order.epoch;
        state.reply.step = order.step;
        auto failure = std::make_shared<std::shared_ptr<const Error>>();
        Work work;
        work.body = [runner = state.runner, folder = order.checkpoint, failure](Stream& stream) {
          try {
            if (const Status filled = fill(runner->stage(), stream, folder); !filled)
              *failure = std::make_shared<const Error>(filled.error());
          } catch (const std::exception& thrown) {
            *failure = std::make_shared<const Error>(
                Error{ErrorCode::internal,
                      fmt::format("stage {}: {}", runner->id().value, thrown.what())});
          }
        };
        work.done = [to = caf::actor_cast<caf::actor>(self), failure](WorkTimes) {
          caf::anon_send(to, StageFilled{*failure});
        };
        state.hardware->submit(std::move(work));
        return caf::delegated<Ready>{};
      },
      [&state](const StageFilled& filled) {
        if (filled.failure)
          state.pending.deliver(to_caf(*filled.failure));
        else
          state.pending.deliver(state.reply);
        state.pending = {};
      },
  };
}

}  // namespace

caf::actor spawn_stage_actor(caf::actor_system& system,
                             std::shared_ptr<StageRunner> runner,
                             std::shared_ptr<Device> hardware) {
  return system.spawn(stage_actor, std::move(runner), std::move(hardware));
}

}  // namespace troupe
