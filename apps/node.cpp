#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <charconv>
#include <ostream>

#include "actors/launch.h"
#include "apps/interrupts.h"
#include "apps/program.h"
#include "planner/units.h"

namespace troupe {
namespace {

ExitCode serve(const std::string& address,
               const std::string& name,
               const std::string& timeout,
               const Console& console) {
  const auto patience = parse_seconds(timeout);
  if (!patience)
    return report_error(
        {ErrorCode::invalid_input, fmt::format("--timeout: {}", patience.error().text)}, console);
  const auto colon = address.rfind(':');
  unsigned port = 0;
  bool holds = colon != std::string::npos && colon > 0;
  if (holds) {
    const char* end = address.data() + address.size();
    const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
    holds = parsed.ec == std::errc{} && parsed.ptr == end && port > 0 && port <= 65535;
  }
  if (!holds)
    return report_error(
        {ErrorCode::invalid_input,
         fmt::format("--join {}: not host:port with a port from 1 to 65535; write it "
                     "like 127.0.0.1:7000",
                     address)},
        console);
  // A terminal and a batch system tell every process: once joined, the run ends its nodes in order.
  const Interrupts listening;
  JoinCallbacks callbacks;
  callbacks.on_waiting = [&](const std::string& why) {
    console.err << fmt::format("no run answers at {} yet ({}); trying for {}\n", address, why,
                               timeout)
                << std::flush;
  };
  callbacks.on_joined = [&] {
    console.err << fmt::format("joined the run at {} as {}; serving it until it ends\n", address,
                               name)
                << std::flush;
  };
  callbacks.should_stop = Interrupts::asked;
  callbacks.on_must_stay = [&] {
    console.err
        << "the run decides when its nodes end: stop it where `troupe train` runs; a second "
           "interrupt here leaves at once and fails the run\n"
        << std::flush;
  };
  const Status done = run_node(address.substr(0, colon), static_cast<std::uint16_t>(port), name,
                               *patience, callbacks);
  if (!done) return report_error(done.error(), console);
  console.err << "the run has ended\n";
  return ExitCode::success;
}

}  // namespace

void add_node(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("node", "Serve a run as one of its nodes");
  const auto address = std::make_shared<std::string>();
  const auto name = std::make_shared<std::string>();
  command->add_option("--join", *address, "Where the run listens, HOST:PORT")->required();
  command->add_option("--name", *name, "Which [[node]] of the configuration this is")->required();
  const auto timeout = std::make_shared<std::string>("10 min");
  command->add_option("--timeout", *timeout, "How long to look for the run, like \"30 s\"")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  troupe node --join 127.0.0.1:7171 --name second\n"
      "  troupe node --join 127.0.0.1:7171 --name second --timeout \"1 h\"\n\n"
      "The run may start before the node or after it: each waits for the other.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return serve(*address, *name, *timeout, console); };
  });
}

}  // namespace troupe
