/// How a run session asks its members: requests with a deadline that also end when the member goes
/// away. Included by the session's sources alone.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "actors/run_session.h"

namespace troupe {

inline constexpr auto look_interval = std::chrono::milliseconds{50};

template <class Reply, class Message>
std::future<Result<Reply>> RunSession::ask(const Member& member, Seconds timeout, Message message) {
  auto promise = std::make_shared<std::promise<Result<Reply>>>();
  auto settled = std::make_shared<bool>(false);  // the asking actor alone touches it
  auto future = promise->get_future();
  const auto settle = [promise, settled](Result<Reply> result) {
    if (std::exchange(*settled, true)) return;
    promise->set_value(std::move(result));
  };
  const auto limit =
      std::chrono::duration_cast<caf::timespan>(std::chrono::duration<double>(timeout));
  system_.spawn([settle, agent = member.agent, name = member.name, limit, timeout,
                 message = std::move(message)](caf::event_based_actor* asker) {
    asker->monitor(agent);
    asker->set_down_handler([asker, settle, name](const caf::down_msg& down) {
      settle(Error{ErrorCode::peer_lost,
                   fmt::format("{} was lost: {}", name, asker->system().render(down.reason))});
      asker->quit();
    });
    asker->request(agent, limit, message)
        .then(
            [asker, settle](const Reply& reply) {
              settle(reply);
              asker->quit();
            },
            [asker, settle, name, timeout](const caf::error& error) {
              Error cause = from_caf(error, asker->system());
              cause.text = cause.code == ErrorCode::timeout
                               ? fmt::format("{} did not answer within {:.0f} s", name, timeout)
                               : fmt::format("{}: {}", name, cause.text);
              settle(cause);
              asker->quit();
            });
  });
  return future;
}

template <class Reply>
Result<Reply> RunSession::wait(const Member& member, std::future<Result<Reply>>& reply) {
  while (reply.wait_for(look_interval) != std::future_status::ready) {
    if (member.remote)
      if (const auto dead = dead_child()) return *dead;
    if (!closing_ && callbacks_.should_stop && callbacks_.should_stop())
      return Error{ErrorCode::cancelled,
                   fmt::format("stopped while {} was getting ready", member.name)};
  }
  return reply.get();
}

template <class Reply, class Message>
Result<std::vector<Reply>> RunSession::ask_all(Seconds timeout, const Message& message) {
  std::vector<std::future<Result<Reply>>> asked;
  for (const Member& member : members_) asked.push_back(ask<Reply>(member, timeout, message));
  std::vector<Reply> replies;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    auto reply = wait(members_[i], asked[i]);
    if (!reply) return reply.error();
    replies.push_back(std::move(*reply));
  }
  return replies;
}

}  // namespace troupe
