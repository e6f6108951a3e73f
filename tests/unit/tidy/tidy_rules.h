/// The rules of the house that neither compiler nor linter sees, as a function from a file to its
/// findings, so that each rule is tried on bad text as well as on the repository.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::tidy {

/// A file as the rules see it. `path` is relative to the repository root, with '/'.
struct SourceFile {
  std::string path;
  std::string text;
};

/// What breaks a rule: "path:line: what; what to do instead". Empty: nothing.
std::vector<std::string> findings(const SourceFile& file);

/// Files that are longer than they should be, though still allowed.
std::vector<std::string> long_files(const std::vector<SourceFile>& files);

/// Everything that people write in the repository: code, scripts, configurations, documents. Leaves
/// out what was built, runs, and data that came from elsewhere (conf/data, tests/data).
std::vector<SourceFile> repository_files(const std::string& root);

}  // namespace troupe::tidy
