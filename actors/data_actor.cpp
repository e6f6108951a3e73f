/// Feeds microbatches: the tokens of a step, and those of the next one ahead of time. Every process
/// has one over the same files, because a batch is a function of the seed and the step alone.
#include "actors/errors.h"
#include "actors/interfaces.h"

#include <exception>

namespace troupe {
namespace {

struct Prefetch {
  std::uint64_t step = 0;
};

}  // namespace
}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Prefetch)

namespace troupe {
namespace {

struct DataState {
  DataState() {}
  static inline const char* name = "data";
  std::shared_ptr<TokenSource> source;
  std::shared_ptr<const TokenBatch> current, next;
  std::vector<std::shared_ptr<const TokenBatch>> validation;
  bool validation_read = false;

  std::shared_ptr<const TokenBatch> batch_for(std::uint64_t step) {
    if (current && current->step == step) return current;
    if (next && next->step == step) {
      current = std::move(next);
      next = nullptr;
      return current;
    }
    auto batch = std::make_shared<TokenBatch>(source->batch_for_step(step));
    batch->step = step;
    return current = std::move(batch);
  }
  void prefetch(std::uint64_t step) {
    if (next && next->step == step) return;
    auto batch = std::make_shared<TokenBatch>(source->batch_for_step(step));
    batch->step = step;
    next = std::move(batch);
  }
  std::shared_ptr<const TokenBatch> validation_batch(std::uint32_t index) {
    if (!validation_read) {
      for (TokenBatch& batch : source->validation_batches())
        validation.push_back(std::make_shared<const TokenBatch>(std::move(batch)));
      validation_read = true;
    }
    return index < validation.size() ? validation[index] : nullptr;
  }
};

caf::behavior data_actor(ActorOf<DataState>* self, std::shared_ptr<TokenSource> source) {
  DataState& state = self->state;
  state.source = std::move(source);
  return {
      // A validation batch that does not exist is answered without tokens.
      [&state, self](const NeedTokens& need) -> caf::result<Tokens> {
        try {
          if (need.evaluation)
            return Tokens{need.epoch, need.step, state.validation_batch(need.validation)};
          Tokens tokens{need.epoch, need.step, state.batch_for(need.step)};
          self->send(self, Prefetch{need.step + 1});
          return tokens;
        } catch (const std::exception& thrown) {
          return to_caf(Error{ErrorCode::io, std::string("reading tokens: ") + thrown.what()});
        }
      },
      [&state](const Prefetch& ahead) {
        try {
          state.prefetch(ahead.step);
        } catch (const std::exception&) {
          state.next = nullptr;  // the request for that step will say it
        }
      },
  };
}

}  // namespace

caf::actor spawn_data_actor(caf::actor_system& system,
                            std::shared_ptr<TokenSource> source,
                            bool own_thread) {
  if (!own_thread) return system.spawn(data_actor, std::move(source));
  return system.spawn<caf::detached>(data_actor, std::move(source));
}

}  // namespace troupe
