#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
#include <thread>

#include "actors/checkpoint/durable_file.h"
#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/machine_profile.h"
#include "apps/profile_layers.h"
#include "apps/table.h"
#include "devices/compute_pool.h"
#include "devices/probe_disk.h"
#include "devices/probe_link.h"
#include "devices/threads.h"
#include "kernels/probe_kernels.h"
#include "planner/counted.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct ProfileArguments {
  std::string out = "profile.toml";
  std::vector<std::string> disks;
  std::string disk_size = "256 MiB";
  std::string budget = "10 s";
  bool force = false;
  bool json = false;
  bool quiet = false;
};

/// What is to be measured.
struct Wanted {
  std::vector<std::uint32_t> threads;
  std::vector<std::string> left_out;  ///< why, one a line
  std::vector<LayerCase> own;         ///< what the configuration trains
};

std::uint32_t core_count() {
  return std::clamp(std::thread::hardware_concurrency(), 1U, max_pool_threads);
}

/// 1, 2, 4, ... and all cores.
std::vector<std::uint32_t> usual_threads() {
  std::set<std::uint32_t> counts{core_count()};
  for (std::uint32_t n = 1; n < core_count(); n *= 2) counts.insert(n);
  return {counts.begin(), counts.end()};
}

/// The CPU devices of a configuration that are on this machine.
Wanted wanted_of(const LoadedConfig& config) {
  const RunSpec& spec = config.spec;
  Wanted wanted;
  std::set<std::uint32_t> counts;
  for (const DeviceSpec& device : spec.cluster.devices) {
    const std::string& node = spec.cluster.nodes.at(device.node.index()).name;
    const auto& joining = spec.joining_nodes;
    if (device.kind == DeviceKind::emulated)
      wanted.left_out.push_back(
          fmt::format("{} plays {} of the catalogue", device.name, device.model));
    else if (std::find(joining.begin(), joining.end(), device.node) != joining.end())
      wanted.left_out.push_back(fmt::format(
          "{} belongs to node {}, which joins and may be on another machine: run troupe profile "
          "there",
          device.name, node));
    else
      counts.insert(device.threads);
  }
  wanted.threads.assign(counts.begin(), counts.end());
  if (config.untrained.empty())
    wanted.own = own_layers(spec.model, spec.shape, spec.plan.choose_microbatches);
  else
    wanted.left_out.push_back("layers of the model: " + config.untrained);
  return wanted;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "processor";
}

Bytes machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<Bytes>(pages) * static_cast<Bytes>(page) : 1;
}

std::string source_text() {
  utsname machine{};
  const std::string host = uname(&machine) == 0 ? machine.nodename : "this machine";
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const std::string build = build_text();
  return fmt::format("troupe profile {} on {}, {:%Y-%m-%d}", build.substr(0, build.find(' ')), host,
                     fmt::gmtime(now));
}

/// Tells of each part as it begins.
class Steps {
 public:
  Steps(std::size_t count, bool quiet, const Console& console)
      : count_(count), quiet_(quiet), console_(console) {}
  void begin(const std::string& what) {
    ++done_;
    if (!quiet_) console_.err << fmt::format("[{}/{}] {}\n", done_, count_, what) << std::flush;
  }

 private:
  std::size_t count_, done_ = 0;
  bool quiet_;
  const Console& console_;
};

/// The processor with so many threads: its rates in a third of the time, layers in the rest.
Result<ProfiledCpu> measure_cpu(std::uint32_t threads,
                                const std::vector<LayerCase>& own,
                                Seconds share,
                                const std::string& text,
                                std::vector<std::string>& unsteady,
                                const Console& console) {
  ProfiledCpu row;
  row.id = fmt::format("threads_{}", threads);
  row.name = processor_name();
  row.threads = threads;
  row.memory = machine_memory();
  const Seconds begin = monotonic_seconds();
  std::vector<std::string> names;
  {
    ComputePool pool(threads);
    Stream stream(Stream::Body::fast, &pool);
    row.reached = kernels::measure_kernels(stream, share / 3, &names);
  }
  auto layers =
      measure_profile_layers(threads, row.reached.rates, own, begin + share - monotonic_seconds());
  if (!layers) return layers.error();
  row.layers = std::move(layers->ratios);
  if (layers->left_out > 0)
    console.err << fmt::format(
        "{}: {} of {} models' layers left out, for which there was no time; --budget gives more\n",
        text, layers->left_out, reference_layers().size());
  names.insert(names.end(), layers->unsteady.begin(), layers->unsteady.end());
  for (const std::string& name : names) unsteady.push_back(fmt::format("{} ({})", name, text));
  return row;
}

/// What was measured while something else ran is not what the machine can do.
void warn_of_unsteady(const std::vector<std::string>& unsteady, const Console& console) {
  if (unsteady.empty()) return;
  constexpr std::size_t most = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(most, unsteady.size()); ++i)
    names += (i == 0 ? "" : ", ") + unsteady[i];
  if (unsteady.size() > most) names += fmt::format(" and {} more", unsteady.size() - most);
  console.err << fmt::format(
      "warning: repeated measurements differ by more than 20 %: {}; plans from this profile may be "
      "as far off: measure again when nothing else runs\n",
      names);
}

Result<MachineProfile> measure(const Wanted& wanted,
                               const ProfileArguments& arguments,
                               Seconds budget,
                               Bytes disk_bytes,
                               const Console& console) {
  const std::size_t parts = wanted.threads.size() + 2 + arguments.disks.size();
  // Links are measured soon; disks take as long as their bytes do.
  const bool any = !wanted.threads.empty();
  const Seconds link_share = budget / (any ? 10 : 2);
  const Seconds cpu_share =
      any ? 0.8 * budget / static_cast<double>(wanted.threads.size()) : Seconds{0};
  Steps steps(parts, arguments.quiet, console);
  MachineProfile profile;
  profile.source = source_text();
  std::vector<std::string> unsteady;
  for (const std::uint32_t threads : wanted.threads) {
    const std::string text = fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
    steps.begin(fmt::format("processor, {}: matrix products, memory, op launch, layers", text));
    const auto row = measure_cpu(threads, wanted.own, cpu_share, text, unsteady, console);
    if (!row) return row.error();
    profile.cpus.push_back(*row);
  }
  steps.begin("link between devices of one process: copies");
  profile.links.push_back(
      {"in_process", "copies within a process", measure_in_process_link(link_share)});
  steps.begin("link between processes: ZeroMQ over loopback");
  const auto loopback = measure_loopback_link(link_share);
  if (!loopback) return loopback.error();
  profile.links.push_back({"between_processes", "ZeroMQ over loopback", *loopback});
  for (const std::string& folder : arguments.disks) {
    steps.begin(
        fmt::format("disk under {}: {} written and read", folder, format_bytes(disk_bytes)));
    const auto disk = measure_disk(folder, disk_bytes);
    if (!disk) return disk.error();
    if (!disk->direct)
      console.err << fmt::format(
          "warning: {} cannot be read past the system's memory: its read figures may be those of "
          "memory\n",
          folder);
    std::error_code failure;
    profile.disks.push_back({fmt::format("disk_{}", profile.disks.size() + 1),
                             fs::absolute(folder, failure).lexically_normal().string(), disk->read,
                             disk->write, disk->read_latency});
  }
  warn_of_unsteady(unsteady, console);
  return profile;
}

/// Bad values, before anything is measured.
struct Checked {
  Seconds budget = 0;
  Bytes disk_bytes = 0;
};
Result<Checked> check(const ProfileArguments& arguments) {
  const auto refuse = [](const std::string& text) { return Error{ErrorCode::invalid_input, text}; };
  const auto budget = parse_seconds(arguments.budget);
  if (!budget) return refuse("--budget: " + budget.error().text);
  if (!(*budget > 0 && *budget <= 3600))
    return refuse(fmt::format("--budget {}: above 0, at most 1 h", arguments.budget));
  const auto bytes = parse_bytes(arguments.disk_size);
  if (!bytes) return refuse("--disk-size: " + bytes.error().text);
  if (*bytes < 1_MiB)
    return refuse(fmt::format("--disk-size {}: at least 1 MiB", arguments.disk_size));
  std::error_code failure;
  for (const std::string& folder : arguments.disks)
    if (!fs::is_directory(folder, failure))
      return refuse(fmt::format("--disk {}: there is no such folder", folder));
  const fs::file_status there = fs::status(arguments.out, failure);
  if (fs::exists(there) && !fs::is_regular_file(there))
    return refuse(fmt::format("--out {}: is no file, and is never replaced", arguments.out));
  if (!arguments.force && fs::exists(fs::symlink_status(arguments.out, failure)))
    return refuse(fmt::format("{} exists; another name with --out FILE, or --force to replace it",
                              arguments.out));
  const fs::path parent = fs::path(arguments.out).parent_path();
  if (!parent.empty() && !fs::is_directory(parent, failure))
    return refuse(fmt::format("--out {}: there is no folder {}", arguments.out, parent.string()));
  return Checked{*budget, *bytes};
}

/// Three runs of everything take about this long; a budget is held, or refused.
Status check_budget(Seconds budget, const Wanted& wanted) {
  constexpr Seconds each = 0.5, links = 0.1;
  const Seconds least = links + each * static_cast<double>(wanted.threads.size());
  if (budget >= least) return {};
  return Error{ErrorCode::invalid_input,
               fmt::format("--budget {}: {} of threads and two links take longer; at least {}",
                           format_seconds(budget), counted(wanted.threads.size(), "number"),
                           format_seconds(least))};
}

Status save(const std::string& path, const std::string& text) {
  // A name that nobody else has: what lies beside the file is not ours to remove.
  const fs::path fresh = fmt::format("{}.{}.writing", path, ::getpid());
  if (const auto written = write_file(fresh, text); !written) {
    std::error_code ignored;
    fs::remove(fresh, ignored);
    return written.error();
  }
  // As any file that a program writes, and as the one that it replaces.
  std::error_code failure;
  const fs::file_status there = fs::status(path, failure);
  const ::mode_t kept_back = ::umask(022);
  ::umask(kept_back);
  fs::permissions(fresh, fs::exists(there) ? there.permissions() : fs::perms{0666U & ~kept_back},
                  failure);
  return rename_durably(fresh, path);
}

void print(const MachineProfile& profile, const Console& console) {
  Table cpus({{"threads", "threads", true},
              {"f32", "f32", true},
              {"small", "small", true},
              {"thin", "thin", true},
              {"bf16", "bf16", true},
              {"small", "small", true},
              {"thin", "thin", true},
              {"memory", "memory", true},
              {"launch", "launch", true}});
  const auto gflops = [](FlopsPerSecond rate) {
    return TableCell{fmt::format("{:.1f} Gflop/s", rate / 1e9), rate};
  };
  for (const ProfiledCpu& row : profile.cpus)
    cpus.add(
        {{fmt::format("{}", row.threads), row.threads},
         gflops(row.reached.f32.large),
         gflops(row.reached.f32.small),
         gflops(row.reached.f32.thin),
         gflops(row.reached.bf16.large),
         gflops(row.reached.bf16.small),
         gflops(row.reached.bf16.thin),
         {fmt::format("{:.1f} GB/s", row.reached.rates.memory / 1e9), row.reached.rates.memory},
         {format_seconds(row.reached.rates.launch), row.reached.rates.launch}});
  if (!profile.cpus.empty()) console.out << profile.cpus.front().name << '\n' << cpus.to_text();
  for (const ProfiledCpu& row : profile.cpus)
    console.out << fmt::format("layers measured with {}: {}\n", counted(row.threads, "thread"),
                               layers_text(row.layers));
  for (const ProfiledLink& row : profile.links)
    console.out << fmt::format("{}: {} and {:.2f} GB/s\n", row.name,
                               format_seconds(row.reached.latency), row.reached.bandwidth / 1e9);
  for (const ProfiledDisk& row : profile.disks)
    console.out << fmt::format("{}: read {:.2f} GB/s, write {:.2f} GB/s, a page in {}\n", row.name,
                               row.read / 1e9, row.write / 1e9, format_seconds(row.read_latency));
}

ExitCode profile(const ConfigArguments& config,
                 const ProfileArguments& arguments,
                 const Console& console) {
  const auto checked = check(arguments);
  if (!checked) return report_error(checked.error(), console);
  Wanted wanted{usual_threads(), {}, {}};
  if (!config.file.empty()) {
    const auto loaded = load(config, console, ModelNeed::any);
    if (!loaded) return report_error(loaded.error(), console);
    wanted = wanted_of(*loaded);
  } else if (!config.overrides.empty()) {
    return report_error({ErrorCode::invalid_input, "--set changes a configuration: name one"},
                        console);
  }
  for (const std::string& why : wanted.left_out) console.err << "left out: " << why << '\n';
  if (const Status enough = check_budget(checked->budget, wanted); !enough)
    return report_error(enough.error(), console);
  const auto measured = measure(wanted, arguments, checked->budget, checked->disk_bytes, console);
  if (!measured) return report_error(measured.error(), console);
  if (const Status saved = save(arguments.out, to_toml(*measured)); !saved)
    return report_error(saved.error(), console);
  if (arguments.json) {
    console.out << to_json(*measured) << '\n';
    return ExitCode::success;
  }
  print(*measured, console);
  console.out << fmt::format("written to {}; a configuration uses it with [cluster] profile\n",
                             arguments.out);
  return ExitCode::success;
}

}  // namespace

void add_profile(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command =
      app.add_subcommand("profile", "Measure the devices and links that are here, for plans");
  const auto config = add_config_arguments(*command, ConfigNeed::optional);
  const auto arguments = std::make_shared<ProfileArguments>();
  command->add_option("--out", arguments->out, "File that is written")
      ->type_name("FILE")
      ->capture_default_str();
  command->add_option("--disk", arguments->disks, "Measure the disk under this folder; may repeat")
      ->type_name("FOLDER")
      ->expected(1)
      ->take_all();
  command->add_option("--disk-size", arguments->disk_size, "Bytes that are written and read there")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_option("--budget", arguments->budget, "Time for everything but disks; about")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_flag("--force", arguments->force, "Replace the file");
  command->add_flag("--json", arguments->json, "Print what was measured as JSON");
  command->add_flag("--quiet", arguments->quiet, "No progress");
  command->footer(
      "Examples:\n"
      "  troupe profile --out here.toml --disk runs\n"
      "  troupe profile conf/cpu_only.toml --out here.toml\n"
      "\nMeasures the numbers of threads that the CPU devices of CONF have; without one 1, 2, 4 "
      "and so\n"
      "on. A configuration uses the file with [cluster] profile = \"here.toml\".\nMeasure on an "
      "idle machine.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return profile(*config, *arguments, console); };
  });
}

}  // namespace troupe
