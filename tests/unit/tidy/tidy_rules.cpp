#include "tests/unit/tidy/tidy_rules.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>

namespace troupe::tidy {
namespace {

namespace fs = std::filesystem;

/// From right to left: a folder may use itself and those before it.
constexpr std::array<std::string_view, 5> layers{"planner", "devices", "kernels", "actors", "apps"};
constexpr std::size_t longest_file = 700;
constexpr std::size_t long_file = 500;

/// Which part of the house alone may include a library.
struct LibraryOwner {
  std::string_view prefix;   ///< of the include path
  std::string_view folders;  ///< comma-separated
};
constexpr LibraryOwner owners[] = {
    {"caf/", "actors,tests"},    {"zmq", "devices,tests"},   {"oneapi/dnnl/", "kernels,tests"},
    {"dnnl", "kernels,tests"},   {"hwy/", "kernels,tests"},  {"CLI/", "apps,tests"},
    {"toml++/", "apps,tests"},   {"toml.hpp", "apps,tests"}, {"catch2/", "tests"},
    {"cuda", "devices,kernels"},
};
/// Pure values and functions: no clock, no file, no socket, no thread.
constexpr std::string_view impure[] = {"chrono",       "fstream",  "iostream", "filesystem",
                                       "thread",       "mutex",    "atomic",   "condition_variable",
                                       "sys/socket.h", "unistd.h", "random",   "ctime"};

struct Collector {
  const SourceFile& file;
  std::vector<std::string> found;

  void add(std::size_t line, const std::string& what) {
    found.push_back(file.path + ":" + std::to_string(line) + ": " + what);
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string folder_of(std::string_view path) {
  const auto slash = path.find('/');
  return slash == std::string_view::npos ? "" : std::string(path.substr(0, slash));
}

std::optional<std::size_t> layer_of(std::string_view folder) {
  const auto at = std::find(layers.begin(), layers.end(), folder);
  if (at == layers.end()) return std::nullopt;
  return static_cast<std::size_t>(at - layers.begin());
}

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](auto e) { return path.ends_with(e); });
}

bool is_cpp(std::string_view path) {
  return ends_with_any(path, {".h", ".cpp", ".cu", ".cuh"});
}

/// Highway's convention for headers that are included once per instruction set.
bool is_per_target(std::string_view path) {
  return path.ends_with("-inl.h");
}

bool listed(std::string_view list, std::string_view word) {
  std::istringstream in{std::string(list)};
  for (std::string item; std::getline(in, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

void check_include_folder(Collector& out, std::size_t line, const std::string& included) {
  const std::string here = folder_of(out.file.path);
  const auto from = layer_of(here);
  const std::string target = folder_of(included);
  const auto to = layer_of(target);
  if (!to && target != "tests") {
    out.add(line, "\"" + included + "\" is not a path from the repository root (folder/file.h)");
  } else if (from && !to) {
    out.add(line, here + " includes " + target + "; tests are on top of everything");
  } else if (from && to && *to > *from) {
    out.add(line, here + " includes " + target + "; allowed: apps -> actors -> kernels -> " +
                      "devices -> planner");
  }
}

void check_library(Collector& out, std::size_t line, const std::string& included) {
  const std::string here = folder_of(out.file.path);
  for (const auto& owner : owners) {
    if (included.starts_with(owner.prefix) && !listed(owner.folders, here)) {
      out.add(line, "<" + included + "> belongs to " + std::string(owner.folders));
      return;
    }
  }
  if (included.starts_with("caf/") && here == "actors" && out.file.path.ends_with(".h") &&
      included != "caf/fwd.hpp" && out.file.path.find("/caf_") == std::string::npos) {
    out.add(line,
            "<" + included + "> in a header; only <caf/fwd.hpp> and the facade actors/caf_*.h");
  }
  const bool is_impure =
      std::find(std::begin(impure), std::end(impure), included) != std::end(impure);
  if (here == "planner" && is_impure) {
    out.add(line, "<" + included + "> in planner, which holds pure values and functions");
  }
}

void check_includes(Collector& out, const std::vector<std::string>& lines) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::smatch match;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!std::regex_search(lines[i], match, include)) continue;
    if (match[1] == "\"") {
      check_include_folder(out, i + 1, match[2]);
    } else {
      check_library(out, i + 1, match[2]);
    }
  }
}

void check_name(Collector& out) {
  static const std::regex vague(
      "(^|_)(util|utils|utility|utilities|common|misc|manager|managers|helper|helpers)(_|$)");
  std::string stem = fs::path(out.file.path).stem().string();
  if (is_per_target(out.file.path)) stem.resize(stem.size() - std::string_view("-inl").size());
  if (std::regex_search(stem, vague)) {
    out.add(1, "the name '" + stem + "' does not say what is inside");
  }
  static const std::regex lower("[a-z0-9_]+");
  if (is_cpp(out.file.path) && !std::regex_match(stem, lower)) {
    out.add(1, "the name '" + stem + "' is not snake_case");
  }
}

void check_header(Collector& out, const std::vector<std::string>& lines) {
  if (!out.file.path.ends_with(".h")) return;
  const std::string_view opening = is_per_target(out.file.path) ? "//" : "///";
  if (lines.empty() || !lines[0].starts_with(opening)) {
    out.add(1, "a header opens with a comment: /// what it is for, in two to six lines");
  }
  if (!is_per_target(out.file.path) &&
      std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
    out.add(1, "a header without #pragma once");
  }
}

/// Floating-point numbers do not survive CAF 0.17's wire format: they travel as bit patterns.
void check_messages(Collector& out, const std::vector<std::string>& lines) {
  const fs::path path(out.file.path);
  if (folder_of(out.file.path) != "actors" || path.filename() != "messages.h") return;
  static const std::regex floating(R"(\b(float|double|Seconds|BytesPerSecond|Flops)\b)");
  static const std::regex alias(R"(^\s*using\b)");
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string code = lines[i].substr(0, lines[i].find("//"));
    const bool is_field = code.find(';') != std::string::npos &&
                          code.find('(') == std::string::npos && !std::regex_search(code, alias);
    if (is_field && std::regex_search(code, floating)) {
      out.add(i + 1, "a floating-point field in a message; carry its bits");
    }
  }
}

void check_text(Collector& out, const std::vector<std::string>& lines) {
  // Spelled in pieces, so that this file passes its own rules.
  static const std::regex machine_path(std::string("(^|[^A-Za-z0-9_./])/(wo") + "rk|ro" + "ot|ho" +
                                       "me|fa" + "rm)/");
  static const std::regex registry(std::string("https?://[^ ]*(deb") + "ian|py" + "pi|python" +
                                   "hosted|npm" + "js)");
  static const std::regex unfinished(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X)\\b");
  static const std::regex sleeping(std::string("\\b(sleep_") + "for|sleep_" + "until|usl" +
                                   "eep|nano" + "sleep)\\s*\\(");
  static const std::regex environment(std::string("\\b(secure_)?get") + "env\\s*\\(");
  const bool code = is_cpp(out.file.path);
  const std::string folder = folder_of(out.file.path);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (std::regex_search(line, machine_path)) out.add(i + 1, "a path of one machine");
    if (std::regex_search(line, registry)) out.add(i + 1, "the host of a package registry");
    if (std::regex_search(line, unfinished)) out.add(i + 1, "an unfinished place; finish it");
    if (code && folder == "tests" && std::regex_search(line, sleeping)) {
      out.add(i + 1, "a test that sleeps; wait for a message or move the clock");
    }
    if (code && layer_of(folder) && std::regex_search(line, environment)) {
      out.add(i + 1, "an environment variable; Troupe is told everything in its configuration");
    }
  }
}

bool is_generated(const std::vector<std::string>& lines) {
  return !lines.empty() && lines[0].find("Generated by ") != std::string::npos;
}

void check_size(Collector& out, const std::vector<std::string>& lines) {
  if (is_cpp(out.file.path) && lines.size() > longest_file && !is_generated(lines)) {
    out.add(lines.size(), std::to_string(lines.size()) + " lines, at most " +
                              std::to_string(longest_file) + " are allowed; split the file");
  }
}

bool is_left_out(const std::string& path) {
  static constexpr std::string_view folders[] = {"build",     "runs",       ".git", ".cache",
                                                 "conf/data", "tests/data", ".venv"};
  return std::any_of(std::begin(folders), std::end(folders), [&](std::string_view folder) {
    return path == folder || path.starts_with(std::string(folder) + "/") ||
           path.starts_with("build-");
  });
}

bool is_written_by_people(const std::string& path) {
  return is_cpp(path) || path == "run" || path == ".ci/run" ||
         ends_with_any(path, {".md", ".txt", ".cmake", ".toml", ".py", ".sh", ".supp", ".json"});
}

}  // namespace

std::vector<std::string> findings(const SourceFile& file) {
  Collector out{file, {}};
  const auto lines = lines_of(file.text);
  check_name(out);
  check_text(out, lines);
  if (is_cpp(file.path)) {
    check_includes(out, lines);
    check_header(out, lines);
    check_messages(out, lines);
    check_size(out, lines);
  }
  return out.found;
}

std::vector<std::string> long_files(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const auto& file : files) {
    const auto lines = lines_of(file.text);
    if (is_cpp(file.path) && lines.size() > long_file && !is_generated(lines)) {
      found.push_back(file.path + ": " + std::to_string(lines.size()) + " lines");
    }
  }
  return found;
}

std::vector<SourceFile> repository_files(const std::string& root) {
  std::vector<SourceFile> files;
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator();
       ++at) {
    const std::string path = fs::relative(at->path(), root).generic_string();
    if (is_left_out(path)) {
      if (at->is_directory()) at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file() || !is_written_by_people(path)) continue;
    std::ifstream in(at->path(), std::ios::binary);
    files.push_back({path, {std::istreambuf_iterator<char>(in), {}}});
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace troupe::tidy
