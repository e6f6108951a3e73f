#include "planner/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "planner/prerequisites.h"
#include "planner/result.h"
#include "planner/simulate.h"
#include "planner/units.h"

namespace troupe {
namespace {

constexpr std::size_t tried_terms = 16;
constexpr std::uint32_t first_interval = 8;
constexpr std::uint32_t longest_interval = 1024;
constexpr std::uint32_t most_tries = 8;

/// Seconds of every action of a step, by its number.
struct Lengths {
  ActionIndex index;
  std::vector<Seconds> seconds;
  Lengths(const Schedule& schedule, const Timeline& timeline)
      : index(schedule.stages), seconds(index.size()) {
    for (const Span& span : timeline.spans) seconds[index.of(span.action)] = span.end - span.begin;
  }
  Seconds of(const Action& action) const { return seconds[index.of(action)]; }
};

/// The actions of one term.
struct Term {
  DriftCause cause;
  std::vector<Action> actions;
};

std::vector<Term> terms_of(const Schedule& schedule) {
  std::vector<Term> terms;
  const std::size_t stages = schedule.stages.stage_count();
  for (std::uint32_t s = 0; s < stages; ++s)
    for (const DriftTerm term : {DriftTerm::arithmetic, DriftTerm::optimizer}) {
      const DeviceId device = schedule.stages.device_of_stage[s];
      terms.push_back({{term, device, device, StageId{s}}, {}});
    }
  for (const auto& lane : schedule.devices)
    for (const Action& action : lane) {
      const bool optimizer = action.op == Op::norm || action.op == Op::update;
      terms[2 * action.stage.index() + (optimizer ? 1 : 0)].actions.push_back(action);
    }
  for (const LinkLane& link : schedule.links)
    terms.push_back({{DriftTerm::link, link.from, link.to, {}}, link.actions});
  return terms;
}

Seconds sum_of(const Term& term, const Lengths& lengths) {
  Seconds sum = 0;
  for (const Action& action : term.actions) sum += lengths.of(action);
  return sum;
}

/// The device before whose actions, and sends, most time passed after everything they needed was
/// there.
DeviceId most_delayed(const Schedule& schedule, const Timeline& played) {
  const ActionIndex index(schedule.stages);
  std::vector<const Span*> spans(index.size());
  for (const Span& span : played.spans) spans[index.of(span.action)] = &span;
  std::map<DeviceId, Seconds> delays;
  const auto walk = [&](DeviceId device, const std::vector<Action>& lane) {
    Seconds before = 0;
    for (const Action& action : lane) {
      const Span* span = spans[index.of(action)];
      if (span == nullptr) continue;
      Seconds ready = before;
      for_each_prerequisite(action, schedule.stages, schedule.split_backward,
                            [&](const Action& needed) {
                              if (const Span* one = spans[index.of(needed)])
                                ready = std::max(ready, one->end);
                              return true;
                            });
      delays[device] += std::max(0.0, span->begin - ready);
      before = span->end;
    }
  };
  for (std::uint32_t d = 0; d < schedule.devices.size(); ++d)
    walk(DeviceId{d}, schedule.devices[d]);
  for (const LinkLane& link : schedule.links) walk(link.from, link.actions);
  const auto most =
      std::max_element(delays.begin(), delays.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == delays.end() ? DeviceId{} : most->first;
}

/// "t4 (d2) of node turing"; less where names are not known.
std::string device_text(DeviceId device,
                        const std::vector<std::string>& devices,
                        const std::vector<std::string>& nodes) {
  std::string text = fmt::format("d{}", device.value);
  if (device.index() < devices.size()) text = fmt::format("{} ({})", devices[device.index()], text);
  if (device.index() < nodes.size()) text += " of node " + nodes[device.index()];
  return text;
}

}  // namespace

Drift explain_drift(const Schedule& schedule,
                    const Timeline& planned,
                    const Timeline& played,
                    Seconds measured_step) {
  const Lengths plan(schedule, planned);
  const Lengths run(schedule, played);
  const auto seconds_with = [&](const Lengths& lengths) {
    return simulate(schedule, [&](const Action& action) { return lengths.of(action); }).makespan();
  };
  Drift drift;
  drift.predicted_step = planned.makespan();
  drift.measured_step = measured_step;
  EXPECTS(drift.predicted_step > 0);
  const Seconds all = seconds_with(run);
  drift.cause = {DriftTerm::overhead, most_delayed(schedule, played), {}, {}};
  drift.measured_term = measured_step - all;
  drift.explained = measured_step - all;
  const double sign = measured_step >= drift.predicted_step ? 1 : -1;

  std::vector<Term> terms = terms_of(schedule);
  const auto difference = [&](const Term& term) {
    return std::abs(sum_of(term, run) - sum_of(term, plan));
  };
  std::stable_sort(terms.begin(), terms.end(),
                   [&](const Term& a, const Term& b) { return difference(a) > difference(b); });
  if (terms.size() > tried_terms) terms.resize(tried_terms);
  for (const Term& term : terms) {
    Lengths without = run;
    for (const Action& action : term.actions)
      without.seconds[without.index.of(action)] = plan.of(action);
    const Seconds explained = all - seconds_with(without);
    if (sign * explained <= sign * drift.explained) continue;
    drift.cause = term.cause;
    drift.explained = explained;
    drift.predicted_term = sum_of(term, plan);
    drift.measured_term = sum_of(term, run);
  }
  return drift;
}

std::string to_text(const Drift& drift,
                    const std::vector<std::string>& device_names,
                    const std::vector<std::string>& node_names) {
  const std::string device = device_text(drift.cause.device, device_names, node_names);
  std::string what;
  switch (drift.cause.term) {
    case DriftTerm::arithmetic:
      what = fmt::format("arithmetic of stage {} on {}", drift.cause.stage.value, device);
      break;
    case DriftTerm::optimizer:
      what = fmt::format("optimizer of stage {} on {}", drift.cause.stage.value, device);
      break;
    case DriftTerm::link:
      what = fmt::format("link {} > {}", device,
                         device_text(drift.cause.to, device_names, node_names));
      break;
    case DriftTerm::overhead:
      what = fmt::format("overhead of messages and waiting for tokens, most before actions of {},",
                         device);
      break;
  }
  std::string text = fmt::format("steps take {}, {:.2f} x the plan's {}: {} takes {} a step",
                                 format_seconds(drift.measured_step), drift.ratio(),
                                 format_seconds(drift.predicted_step), what,
                                 format_seconds(std::max(0.0, drift.measured_term)));
  if (drift.predicted_term > 0)
    text += fmt::format(", {:.2f} x the plan's", drift.measured_term / drift.predicted_term);
  else
    text += ", which the plan does not have";
  return text;
}

double DriftWatch::off(Seconds measured) const {
  return std::abs(measured / predicted_ - 1);
}

bool DriftWatch::step(Seconds measured) {
  if (predicted_ <= 0) return false;
  recent_.push_back(measured);
  if (recent_.size() > window) recent_.pop_front();
  if (recent_.size() < window) return false;
  std::vector<Seconds> sorted(recent_.begin(), recent_.end());
  std::nth_element(sorted.begin(), sorted.begin() + window / 2, sorted.end());
  median_ = sorted[window / 2];
  if (wait_ > 0) --wait_;
  suspicious_ = off(median_) > (in_force_ ? end_share : share);
  if (suspicious_) return false;
  candidate_.reset();
  wait_ = tries_ = interval_ = 0;
  if (!in_force_) return false;
  in_force_.reset();
  return true;
}

bool DriftWatch::traced(const Drift& seen) {
  const bool drifts = off(seen.measured_step) > (in_force_ ? end_share : share);
  const bool agrees = drifts && candidate_ == seen.cause;
  if (!agrees) {
    candidate_ = drifts ? std::optional(seen.cause) : std::nullopt;
    if (++tries_ < most_tries) return false;
  }
  // Known now, or not to be known by looking again at once.
  interval_ = std::clamp(2 * interval_, first_interval, longest_interval);
  wait_ = interval_;
  tries_ = 0;
  candidate_.reset();
  if (!agrees || in_force_ == seen.cause) return false;
  in_force_ = seen.cause;
  return true;
}

}  // namespace troupe
