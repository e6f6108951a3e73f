#include "apps/what_if_arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "apps/config_schema.h"

namespace troupe {
namespace {

Result<double> number_of(std::string_view text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size() || !std::isfinite(value))
    return Error{ErrorCode::invalid_input, fmt::format("\"{}\" is no number", text)};
  return value;
}

std::string rate_text(BytesPerSecond rate) {
  return rate < 1e9 ? fmt::format("{:.3g} MB/s", rate / 1e6)
                    : fmt::format("{:.2f} GB/s", rate / 1e9);
}

/// Reads the arguments, collecting what is wrong with them.
class Reader {
 public:
  explicit Reader(const ClusterSpec& cluster) : names_(device_names(cluster)) {}

  void read_slow(const std::string& text, WhatIf& what_if) {
    const auto [name, value] = halves(text);
    const auto device = device_of("--slow", text, name);
    const auto factor = number_of(value);
    if (!factor || *factor <= 0)
      return wrong("--slow", text, "a factor above 0 is needed, as in --slow {}=2", name);
    if (device && !what_if.slow.emplace(*device, *factor).second)
      wrong("--slow", text, "{} has a factor already", name);
  }

  void read_stop(const std::string& text, WhatIf& what_if) {
    const auto [name, value] = halves(text);
    const auto device = device_of("--stop", text, name);
    const auto at = parse_seconds(value);
    if (!at) return wrong("--stop", text, "{}", at.error().text);
    if (device && !what_if.stops.emplace(*device, *at).second)
      wrong("--stop", text, "{} stops at another time already", name);
  }

  void read_link(const std::string& text, WhatIf& what_if) {
    const auto [ends, changes] = halves(text);
    const std::size_t arrow = ends.find('>');
    if (arrow == std::string::npos)
      return wrong("--link", text, "a link is written A>B, with the names of two devices");
    const auto from = device_of("--link", text, ends.substr(0, arrow));
    const auto to = device_of("--link", text, ends.substr(arrow + 1));
    LinkChange change;
    for (std::size_t at = 0; at <= changes.size();) {
      const std::size_t end = std::min(changes.find(',', at), changes.size());
      if (!read_property(text, changes.substr(at, end - at), change)) return;
      at = end + 1;
    }
    if (!from || !to) return;
    if (*from == *to) return wrong("--link", text, "both ends are the same device");
    change.from = DeviceId{*from};
    change.to = DeviceId{*to};
    add_link(text, change, what_if);
  }

  void check_jitter(double jitter) {
    if (!(jitter >= 0 && jitter <= 1))
      wrong("--jitter", fmt::format("{}", jitter), "must be from 0 to 1, a share of each time");
  }

  const std::string& problems() const { return problems_; }

 private:
  /// A link's changes are one: what several arguments say of it adds up.
  void add_link(const std::string& text, const LinkChange& change, WhatIf& what_if) {
    const auto known =
        std::find_if(what_if.links.begin(), what_if.links.end(), [&](const LinkChange& other) {
          return other.from == change.from && other.to == change.to;
        });
    if (known == what_if.links.end()) return what_if.links.push_back(change);
    merge(text, "latency", change.latency, known->latency);
    merge(text, "bandwidth", change.bandwidth, known->bandwidth);
    merge(text, "loss", change.loss, known->loss);
  }

  void merge(const std::string& text,
             const char* name,
             const std::optional<double>& given,
             std::optional<double>& known) {
    if (given && known) wrong("--link", text, "this link has a {} already", name);
    if (given) known = given;
  }

  static std::pair<std::string, std::string> halves(const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) return {text, ""};
    return {text.substr(0, equals), text.substr(equals + 1)};
  }

  template <class... Parts>
  void wrong(const char* flag, const std::string& text, const char* why, const Parts&... parts) {
    if (!problems_.empty()) problems_ += '\n';
    problems_ += fmt::format("{} {}: ", flag, text) + fmt::format(fmt::runtime(why), parts...);
  }

  std::optional<std::uint32_t> device_of(const char* flag,
                                         const std::string& text,
                                         const std::string& name) {
    for (std::uint32_t d = 0; d < names_.size(); ++d)
      if (names_[d] == name) return d;
    wrong(flag, text, "there is no device \"{}\"; nearest: {}", name, nearest_of_all(name, names_));
    return std::nullopt;
  }

  bool read_property(const std::string& text, const std::string& property, LinkChange& change) {
    const std::size_t colon = property.find(':');
    const std::string name = property.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : property.substr(colon + 1);
    const std::vector<std::string> known{"latency", "bandwidth", "loss"};
    if ((name == "latency" && change.latency) || (name == "bandwidth" && change.bandwidth) ||
        (name == "loss" && change.loss)) {
      wrong("--link", text, "{} stands here twice", name);
      return false;
    }
    if (name == "latency") {
      const auto latency = parse_seconds(value);
      if (!latency) wrong("--link", text, "latency: {}", latency.error().text);
      if (latency) change.latency = *latency;
      return latency.ok();
    }
    if (name == "bandwidth") {
      const auto bandwidth = parse_rate(value);
      if (!bandwidth) wrong("--link", text, "bandwidth: {}", bandwidth.error().text);
      if (bandwidth && *bandwidth <= 0) {
        wrong("--link", text, "bandwidth: must be more than 0; to cut a link off, --stop a device");
        return false;
      }
      if (bandwidth) change.bandwidth = *bandwidth;
      return bandwidth.ok();
    }
    if (name == "loss") {
      const auto loss = number_of(value);
      const bool holds = loss.ok() && *loss >= 0 && *loss <= 1;
      if (!holds) wrong("--link", text, "loss must be from 0 to 1, a share of the attempts");
      if (holds) change.loss = *loss;
      return holds;
    }
    wrong("--link", text,
          "a link has no \"{}\"; nearest: {}, as in --link \"a>b=latency:1 ms,bandwidth:1 "
          "GB/s,loss:0.01\"",
          name, nearest_of_all(name, known));
    return false;
  }

  std::vector<std::string> names_;
  std::string problems_;
};

}  // namespace

std::shared_ptr<WhatIfArguments> add_what_if_arguments(CLI::App& command) {
  auto arguments = std::make_shared<WhatIfArguments>();
  const auto list = [&](const char* flag, std::vector<std::string>& target, const char* help,
                        const char* type) {
    command.add_option(flag, target, help)->type_name(type)->expected(1)->take_all();
  };
  list("--slow", arguments->slow, "A device whose actions last FACTOR times as long; may repeat",
       "DEVICE=FACTOR");
  list("--link", arguments->links,
       "A directed link with other latency, bandwidth or loss (share of the attempts that are sent "
       "again); may repeat, for one link too",
       "A>B=latency:TIME,bandwidth:RATE,loss:SHARE");
  list("--stop", arguments->stops, "A device that stops at a time of the step; may repeat",
       "DEVICE=TIME");
  command.add_option("--jitter", arguments->jitter,
                     "Every time varies by up to this share of it, up or down");
  command.add_option("--seed", arguments->seed, "Of jitter and loss (1)");
  return arguments;
}

Result<WhatIf> read_what_if(const WhatIfArguments& arguments, const ClusterSpec& cluster) {
  WhatIf what_if;
  what_if.jitter = arguments.jitter;
  what_if.seed = arguments.seed;
  Reader reader(cluster);
  for (const std::string& text : arguments.slow) reader.read_slow(text, what_if);
  for (const std::string& text : arguments.links) reader.read_link(text, what_if);
  for (const std::string& text : arguments.stops) reader.read_stop(text, what_if);
  reader.check_jitter(arguments.jitter);
  if (!reader.problems().empty()) return Error{ErrorCode::invalid_input, reader.problems()};
  return what_if;
}

std::vector<std::string> what_if_lines(const WhatIf& what_if, const ClusterSpec& cluster) {
  const auto names = device_names(cluster);
  std::vector<std::string> lines;
  for (const auto& [device, factor] : what_if.slow)
    lines.push_back(fmt::format("{} takes {:g} times as long", names[device], factor));
  for (const LinkChange& change : what_if.links) {
    std::string line =
        fmt::format("{} to {}:", names[change.from.index()], names[change.to.index()]);
    if (change.latency) line += fmt::format(" latency {},", format_seconds(*change.latency));
    if (change.bandwidth) line += fmt::format(" bandwidth {},", rate_text(*change.bandwidth));
    if (change.loss) line += fmt::format(" {:g} of the attempts lost,", *change.loss);
    line.pop_back();
    lines.push_back(line);
  }
  for (const auto& [device, at] : what_if.stops)
    lines.push_back(fmt::format("{} stops at {}", names[device], format_seconds(at)));
  if (what_if.jitter > 0)
    lines.push_back(
        fmt::format("times vary by up to {:g} %, seed {}", 100 * what_if.jitter, what_if.seed));
  return lines;
}

}  // namespace troupe
