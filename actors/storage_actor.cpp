/// Writes the shards of its process's stages. The run orders it between steps, so nobody changes
/// what is read here.
#include <exception>
#include <span>

#include "actors/checkpoint/checkpoint_write.h"
#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/shard_text.h"

namespace troupe {
namespace {

struct StorageState {
  StorageState() {}
  static inline const char* name = "storage";
  StorageActorSetup setup;
  std::vector<ParameterSpec> parameters;
};

std::span<const float> floats(const Tensor& tensor) {
  return {tensor.as<const float>(), tensor.elements()};
}

Result<std::vector<std::string>> write(const StorageState& state, const std::string& folder) {
  std::vector<StateView> views;
  for (const auto& runner : state.setup.runners)
    for (const NamedState& one : runner->stage().state())
      if (!one.shared_copy)
        views.push_back({one.name, state.parameters.at(one.tensor).shape, floats(one.weight),
                         floats(one.first_moment), floats(one.second_moment)});
  const auto records =
      write_shards(folder, {state.setup.process, state.setup.process_count}, views);
  if (!records) return records.error();
  std::vector<std::string> texts;
  for (const FileRecord& record : *records) texts.push_back(shard_text(record));
  return texts;
}

caf::behavior storage_actor(ActorOf<StorageState>* self, StorageActorSetup setup) {
  StorageState& state = self->state;
  state.setup = std::move(setup);
  state.parameters = parameters_of(state.setup.model);
  return {
      [&state](const WriteShards& order) -> caf::result<ShardsWritten> {
        try {
          auto written = write(state, order.folder);
          if (!written) return to_caf(written.error());
          return ShardsWritten{order.epoch, order.step, std::move(*written)};
        } catch (const std::exception& thrown) {
          return to_caf(Error{ErrorCode::io, thrown.what()});
        }
      },
  };
}

}  // namespace

caf::actor spawn_storage_actor(caf::actor_system& system, StorageActorSetup setup) {
  return system.spawn<caf::detached>(storage_actor, std::move(setup));
}

}  // namespace troupe
