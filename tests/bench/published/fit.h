/// One value that a prediction lacks, fitted on rows that are declared as fitting data. These rows
/// are not scored. A folder given with --data is fitted on its own declared rows.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/published/training_runs.h"

namespace troupe::published {

/// A measurement and its prediction as a function of the value that is fitted.
struct FittedRun {
  std::string id;         ///< of the row
  std::string group;      ///< GPU, precision and framework: they share one value
  bool declared = false;  ///< as fitting data
  double measured = 0;
  double flops = 0;  ///< of a step on each device, for the baseline
  std::function<double(double value)> predicted = {};
};

/// Throws BadTable where the measurement or its prediction for `value` is not a number above 0.
FittedRun checked(const FittedRun& run, double value);

/// Declares as fitting data of each group of two runs or more the fifth (rounded up) whose row ids
/// have the smallest hashes. Depends neither on the order of the rows nor on other groups.
void declare_every_fifth(std::vector<FittedRun>& runs);

struct FitRange {
  double low = 0, high = 1;  ///< both above 0
  double unfitted = 1;       ///< what holds where nothing can be fitted: of a catalogue
};
/// Of each group with declared runs: the value that leaves them the least mean absolute error.
FittedValues fit_values(const std::vector<FittedRun>& runs, const FitRange& range);

/// The group's value; where it has none the median of all, where there are none `otherwise`.
double value_of(const FittedValues& values, const std::string& group, double otherwise);

/// Values of `runs`, and for groups that these declare nothing of the values of the project's own
/// copy of the table. `runs_of` reads a folder's runs; it is called again where `folder` is
/// another.
using RunsOf = std::function<std::vector<FittedRun>(const std::filesystem::path& folder)>;
FittedValues fit_values(const RunsOf& runs_of,
                        const std::filesystem::path& folder,
                        const FitRange& range);
std::filesystem::path own_folder();

/// The runs that are not fitting data, with median and baseline. Notes say what was fitted on how
/// many rows.
Score score_fitted(const std::vector<FittedRun>& runs,
                   const FittedValues& values,
                   const FitRange& range,
                   const std::string& table,
                   const std::string& quantity,
                   std::size_t rows);

/// Runs of a table in which products in 8 bits stand beside products in 16 bits: first those in 16
/// bits, whose fitted shares of the peak `run_of` gets for the others. Every fifth is declared.
struct TwoWidths {
  std::function<bool(const Row&)> in_8_bits;
  std::function<FittedRun(const Row&, const FittedValues& in_16_bits)> run_of;
};
std::vector<FittedRun> runs_of(const Table& table,
                               const TwoWidths& widths,
                               std::vector<std::string>& problems);
/// The share of the peak that large products reach, where it is fitted.
extern const FitRange share_of_peak;
/// Step times of such a table, that may be off by 10 % on average.
Score score_step_times(const std::filesystem::path& folder,
                       const Table& table,
                       const std::string& name,
                       const TwoWidths& widths);

/// "DGX-H100 BF16 0.27 on 2, ...".
std::string to_text(const FittedValues& values);

}  // namespace troupe::published
