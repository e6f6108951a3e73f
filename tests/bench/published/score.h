/// How well Troupe's predictions and searches agree with published figures: one scorer per table.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/published_table.h"

namespace troupe::published {

/// A value that a prediction lacks, and the rows that it was fitted on; 0: rows of another table or
/// folder.
struct FittedValue {
  double value = 0;
  std::size_t rows = 0;
};
using FittedValues = std::map<std::string, FittedValue>;  // by GPU, precision and framework

/// One line of the result. Errors are relative: 0.05 is 5 %, except where `quantity` says
/// otherwise.
struct Score {
  std::string table;
  std::string quantity;            ///< "step time", "peak memory", ...
  std::size_t used = 0;            ///< rows compared, of which none was fitted on
  FittedValues fitted;             ///< that the predictions use
  std::size_t fitted_rows = 0;     ///< of this table that they were fitted on: not compared
  std::size_t left_out = 0;        ///< all other rows of the table, for the reasons in `notes`
  double mean = 0;                 ///< of absolute errors
  double maximum = 0;              ///< of absolute errors
  double bias = 0;                 ///< mean of signed errors: positive predicts too much
  std::optional<double> median;    ///< of absolute errors, where a target asks for it
  std::optional<double> baseline;  ///< mean absolute error of a constant efficiency
  std::string target;              ///< "mean <= 8.4 %"; empty: none
  std::optional<bool> reached;     ///< of the target; nothing where no row is scored
  std::vector<std::string> notes;  ///< what was left out, what was fitted and on which rows
};

/// Gathers predictions of one quantity.
class Errors {
 public:
  /// Throws BadTable for what is not finite, or measured as nothing.
  void add(double predicted, double measured);
  std::size_t count() const { return values_.size(); }
  double mean() const;
  double maximum() const;
  double bias() const;
  double median() const;  ///< of absolute errors
  /// Everything but table, target, baseline and notes.
  Score score(const std::string& table, const std::string& quantity) const;

 private:
  std::vector<double> values_;
};

/// Calls `use` for each sound row. A row that it cannot use is left out; why it threw is added to
/// `problems`, once for rows with one reason.
void use_rows(const Table& table,
              std::vector<std::string>& problems,
              const std::function<void(const Row& row)>& use);

/// Sets target and, where rows are scored, reached: mean absolute error at most `most`.
void require_mean(Score& score, double most);
/// Every row to its printed digits: maximum at most `tolerance`.
void require_exact(Score& score, double tolerance = 0);

/// Throws BadTable.
using Scorer = std::vector<Score> (*)(const std::filesystem::path& folder);
struct Entry {
  std::string name;  ///< of the table, or of the family of tables
  Scorer score;
};
/// All of them, in the order in which they are printed.
const std::vector<Entry>& entries();

/// What came of several tables.
struct Outcome {
  std::vector<Score> scores;
  std::vector<std::pair<std::string, std::string>> errors;  ///< table, reason
};
/// A table that cannot be read leaves the others their scores.
Outcome score_all(const std::filesystem::path& folder, const std::vector<const Entry*>& tables);

}  // namespace troupe::published
