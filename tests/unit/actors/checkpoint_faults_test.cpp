#include <fcntl.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "actors/checkpoint/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

using namespace troupe;

namespace {

/// Fails the n-th operation that changes the disk, counting from 0; counts them all.
struct FailAt {
  int n = -1;
  int error = 0;
  int seen = 0;
  WriteHook hook() {
    return [this](WritePoint, const std::filesystem::path&) { return seen++ == n ? error : 0; };
  }
};

Status save_two(const std::filesystem::path& parent,
                const TinyState& state,
                const RunRecord& run,
                const WriteHook& hook) {
  const auto folder = begin_checkpoint(parent, run.step, &hook);
  TROUPE_TRY(folder);
  auto records = write_shards(*folder, {0, 2}, state.views(0, 2), &hook);
  TROUPE_TRY(records);
  const auto others = write_shards(*folder, {1, 2}, state.views(2), &hook);
  TROUPE_TRY(others);
  records->insert(records->end(), others->begin(), others->end());
  TROUPE_TRY(commit_checkpoint(*folder, run, *records, &hook));
  return {};
}

/// The state of the newest complete checkpoint is `older` or `newer`, whole; returns its step.
std::uint64_t check_latest(const std::filesystem::path& parent,
                           const TinyState& older,
                           const TinyState& newer) {
  const auto latest = latest_complete(parent);
  REQUIRE(latest.ok());
  REQUIRE(latest->folder.has_value());
  const auto opened = Checkpoint::open(*latest->folder);
  REQUIRE(opened.ok());
  const auto step = opened->run().step;
  CHECK(state_of(*opened).tensors == (step == 10 ? older : newer).tensors);
  return step;
}

}  // namespace

TEST_CASE("whichever operation of a save fails, the older checkpoint stays the newest complete") {
  const auto model = tiny_gpt2();
  const TinyState older(model, 1), newer(model, 2);
  FailAt none;
  {
    const TemporaryFolder folder(Where::memory);
    REQUIRE(save_two(folder.path(), older, tiny_run(model, 10), none.hook()).ok());
  }
  CHECK(none.seen > 20);
  for (const int error : {ENOSPC, EIO})
    for (int n = 0; n < none.seen; ++n) {
      INFO("operation " << n << " fails with " << error);
      const TemporaryFolder folder(Where::memory);
      FailAt clean;
      REQUIRE(save_two(folder.path(), older, tiny_run(model, 10), clean.hook()).ok());
      FailAt fail{n, error, 0};
      const Status saved = save_two(folder.path(), newer, tiny_run(model, 20), fail.hook());
      REQUIRE_FALSE(saved.ok());
      CHECK(saved.error().code == ErrorCode::io);
      const bool last = n == none.seen - 1;
      CHECK((last || saved.error().text.find("step-00000020") != std::string::npos));
      const auto step = check_latest(folder.path(), older, newer);
      // Only the last sync, of the parent, can fail after the new one is visible.
      CHECK(step == (last ? 20 : 10));
      FailAt again;
      REQUIRE(save_two(folder.path(), newer, tiny_run(model, 20), again.hook()).ok());
      CHECK(check_latest(folder.path(), older, newer) == 20);
    }
}

TEST_CASE("L087 killed at each operation of a save, the newest complete checkpoint is whole") {
  const auto model = tiny_gpt2();
  const TinyState older(model, 1), newer(model, 2);
  FailAt none;
  {
    const TemporaryFolder folder(Where::memory);
    REQUIRE(save_two(folder.path(), older, tiny_run(model, 10), none.hook()).ok());
  }
  for (const bool same_step : {false, true}) {
    const TemporaryFolder folder(Where::memory);
    int kills = 0, replaced = 0;
    for (int n = 0; n < none.seen + 3; ++n) {
      INFO("killed before operation " << n << (same_step ? ", same step" : ""));
      REQUIRE(prune_checkpoints(folder.path(), 1).ok());
      std::filesystem::remove_all(folder / "step-00000020");
      FailAt clean;
      REQUIRE(save_two(folder.path(), older, tiny_run(model, 10), clean.hook()).ok());
      const RunRecord run = tiny_run(model, same_step ? 10 : 20);
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        int seen = 0;
        const WriteHook kill = [&](WritePoint, const std::filesystem::path&) {
          if (seen++ == n) ::_exit(9);
          return 0;
        };
        ::_exit(save_two(folder.path(), newer, run, kill).ok() ? 0 : 1);
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      REQUIRE((WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
      kills += WEXITSTATUS(status) == 9;
      const auto latest = latest_complete(folder.path());
      REQUIRE(latest->folder.has_value());
      const auto opened = Checkpoint::open(*latest->folder);
      REQUIRE(opened.ok());
      const auto found = state_of(*opened).tensors;
      const bool is_newer = found == newer.tensors;
      CHECK((is_newer || found == older.tensors));
      replaced += is_newer;
      if (WEXITSTATUS(status) == 0) CHECK(is_newer);
    }
    CHECK(kills >= none.seen);
    CHECK(replaced >= 3);
  }
}

TEST_CASE("L100 saving needs no memory for the tensors") {
  const TemporaryFolder folder;
  ModelSpec model = tiny_gpt2();
  model.blocks = 1;
  model.vocabulary = 200'000;
  model.width = 32;  // 6.4 million elements, three times: 77 MB
  const std::vector<float> values(std::size_t{200'000} * 32, 0.5F);
  std::vector<StateView> views;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    const auto part = std::span(values).first(parameter.elements());
    views.push_back({parameter.name, parameter.shape, part, part, part});
  }
  const auto before = ::mallinfo2();
  std::size_t most = before.uordblks + before.hblkhd;
  const WriteHook watch = [&](WritePoint, const std::filesystem::path&) {
    const auto now = ::mallinfo2();
    most = std::max(most, now.uordblks + now.hblkhd);
    return 0;
  };
  const auto saved = save_checkpoint(folder.path(), tiny_run(model, 1), views, &watch);
  if (!saved.ok()) FAIL(saved.error().text);
  CHECK(most - (before.uordblks + before.hblkhd) < (std::size_t{1} << 20));
  CHECK(Checkpoint::open(*saved).ok());
}
