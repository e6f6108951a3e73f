/// The layouts that `troupe estimate` found, played: who is busy, who waits for what, drawn as
/// text, as SVG, as a trace and on a page.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/estimate_question.h"
#include "apps/plan_page.h"
#include "apps/table.h"
#include "apps/what_if_arguments.h"

namespace troupe {

struct PlayArguments {
  bool play = false;
  bool text = false;
  std::size_t width = 100;
  std::string svg, trace, html;
  std::shared_ptr<WhatIfArguments> what_if;
  bool wanted() const;  ///< anything of it
};
/// Adds --play, --text, --width, --svg, --trace, --html and the what-ifs.
std::shared_ptr<PlayArguments> add_play_arguments(CLI::App& command);

/// A layout on devices of one kind.
struct PlacedLayout {
  DeviceGroup group;  ///< its devices are those of the layout
  PricedLayout priced;
};

/// Layouts and how their steps went.
struct PlayedLayouts {
  std::vector<PagePlan> plans;
  std::vector<std::string> what_ifs;
  /// Of each of the plans, against its closed form; empty where it was not played.
  std::vector<std::string> agreement;
};

/// Plays layouts. The first `needed` must be such that can be played; of the others the page says
/// why they are not. What-ifs are for one kind of device.
Result<PlayedLayouts> play_layouts(const Question& question,
                                   const std::vector<PlacedLayout>& layouts,
                                   std::size_t needed,
                                   const PlayArguments& arguments);

/// Writes the files that were asked for. `table`: what stands above the layouts on the page.
Status write_drawings(const PlayArguments& arguments,
                      const Question& question,
                      const PlayedLayouts& played,
                      std::size_t needed,
                      const Table& table);

/// The first `needed` layouts, and their timelines where they were asked for.
std::string played_text(const PlayArguments& arguments,
                        const PlayedLayouts& played,
                        std::size_t needed);
nlohmann::ordered_json played_json(const PlayedLayouts& played, std::size_t index);

}  // namespace troupe
