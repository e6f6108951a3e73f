/// The one place that spells what later CAF releases spell differently: includes, type blocks,
/// inspection, configuration. Actor sources include this and nothing of CAF beside.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <caf/all.hpp>

#include "planner/ids.h"
#include "planner/schedule.h"

namespace troupe {

/// One field list per message, `auto fields()`, serves CAF, comparison and the tests.
template <class Message>
concept HasFields = requires(Message& m) {
  m.fields();
  Message::name;
};

template <class Inspector, HasFields Message>
typename Inspector::result_type inspect(Inspector& f, Message& message) {
  return std::apply(
      [&](auto&... field) { return f(caf::meta::type_name(Message::name), field...); },
      message.fields());
}

template <class Inspector, class Tag>
typename Inspector::result_type inspect(Inspector& f, Id<Tag>& id) {
  return f(id.value);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PlanEpoch& epoch) {
  return f(epoch.value);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Action& action) {
  return f(action.op, action.stage, action.microbatch);
}

/// State structs of actors: CAF would hand `self` to an aggregate's first member under C++20, so
/// each has a user-written default constructor.
template <class State>
using ActorOf = caf::stateful_actor<State>;

}  // namespace troupe
