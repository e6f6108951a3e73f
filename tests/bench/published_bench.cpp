// Predictions, plans and searches against figures that other people published:
//   bench_published [--data FOLDER] [--json] [--list] [TABLE...]
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/table.h"
#include "tests/bench/published/score.h"

namespace troupe::published {
namespace {

std::string percent(double value) {
  return fmt::format("{:.2f} %", value * 100);
}

TableCell cell(const std::optional<double>& value) {
  return {value ? percent(*value) : "", value ? nlohmann::json(*value) : nlohmann::json()};
}

troupe::Table table_of(const std::vector<Score>& scores) {
  troupe::Table table({{"table", "table", false},
                       {"quantity", "quantity", false},
                       {"scored", "used", true},
                       {"values fitted", "fitted_values", true},
                       {"on rows", "fitted_rows", true},
                       {"left out", "left_out", true},
                       {"mean", "mean", true},
                       {"median", "median", true},
                       {"max", "maximum", true},
                       {"bias", "bias", true},
                       {"baseline", "baseline", true},
                       {"target", "target", false},
                       {"reached", "reached", false}});
  for (const Score& score : scores)
    table.add({{score.table, score.table},
               {score.quantity, score.quantity},
               {fmt::format("{}", score.used), score.used},
               {fmt::format("{}", score.fitted.size()), score.fitted.size()},
               {fmt::format("{}", score.fitted_rows), score.fitted_rows},
               {fmt::format("{}", score.left_out), score.left_out},
               cell(score.mean),
               cell(score.median),
               cell(score.maximum),
               cell(score.bias),
               cell(score.baseline),
               {score.target, score.target},
               {score.reached ? (*score.reached ? "yes" : "no") : "",
                score.reached ? nlohmann::json(*score.reached) : nlohmann::json()}});
  return table;
}

nlohmann::json to_json(const Outcome& outcome) {
  nlohmann::json out = table_of(outcome.scores).to_json();
  for (std::size_t i = 0; i < outcome.scores.size(); ++i) {
    out[i]["notes"] = outcome.scores[i].notes;
    for (const auto& [group, fitted] : outcome.scores[i].fitted)
      out[i]["fitted"][group] = {{"value", fitted.value}, {"rows", fitted.rows}};
  }
  for (const auto& [name, reason] : outcome.errors)
    out.push_back({{"table", name}, {"error", reason}});
  return out;
}

int run(const std::string& folder, bool json, const std::vector<std::string>& names) {
  std::vector<const Entry*> tables;
  for (const Entry& entry : entries())
    if (names.empty()) tables.push_back(&entry);
  for (const std::string& name : names) {
    const auto found = std::find_if(entries().begin(), entries().end(),
                                    [&](const Entry& entry) { return entry.name == name; });
    if (found == entries().end()) {
      fmt::print(stderr, "error: there is no table \"{}\"; --list names them\n", name);
      return 2;
    }
    tables.push_back(&*found);
  }
  const Outcome outcome = score_all(folder, tables);
  if (json) {
    fmt::print("{}\n", to_json(outcome).dump(1));
  } else {
    fmt::print("{}\n", table_of(outcome.scores).to_text());
    for (const Score& score : outcome.scores)
      for (const std::string& note : score.notes)
        fmt::print("{} ({}): {}\n", score.table, score.quantity, note);
  }
  for (const auto& [name, reason] : outcome.errors)
    fmt::print(stderr, "error: {} is not scored: {}\n", name, reason);
  return outcome.errors.empty() ? 0 : 1;
}

}  // namespace
}  // namespace troupe::published

int main(int argc, char** argv) {
  CLI::App app("Predictions against published figures", "bench_published");
  std::string folder = TROUPE_SOURCE_DIR "/tests/data/published";
  bool json = false;
  bool list = false;
  std::vector<std::string> names;
  app.add_option("--data", folder, "Folder with the CSV files")->check(CLI::ExistingDirectory);
  app.add_flag("--json", json, "As JSON");
  app.add_flag("--list", list, "Only the names of the tables");
  app.add_option("TABLE", names, "Which tables; all without a name");
  try {
    app.parse(argc, argv);
    if (list) {
      for (const auto& entry : troupe::published::entries()) fmt::print("{}\n", entry.name);
      return 0;
    }
    return troupe::published::run(folder, json, names);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
}
