#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/backend/backend.hpp"
#include "baton/base/error.hpp"
#include "baton/grammar/constraints.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"

/// How the engine runs plans: at once on the CPU, or queued on a device that works while the host plans the next one.
namespace baton::engine {

/// Engine thread only.
class Executor {
  public:
    virtual ~Executor() = default;
    [[nodiscard]] virtual const backend::ModelShape& shape() const = 0;
    /// Plans that may be submitted before the oldest is collected.
    [[nodiscard]] virtual uint32_t depth() const = 0;
    /// True where compute runs on a device of its own: what submit and collect take is the host's work, and an error is final.
    [[nodiscard]] virtual bool on_device() const = 0;
    /// Begins a plan; on the CPU it is done when this returns. What the plan points to is not read later.
    virtual Expected<void> submit(const pd::StepPlan& plan) = 0;
    /// True when collect would not wait.
    [[nodiscard]] virtual bool ready() const = 0;
    /// Ends the oldest plan that was not collected: `sampled` gets one token per item with `sample`.
    virtual Expected<void> collect(const pd::StepPlan& plan, std::vector<pd::Sampled>& sampled) = 0;
    /// Reads the weights where that helps the next step (backend::Backend::warm).
    virtual void warm() {}
    /// A step is about to be done: asks for the memory that collect and the next submit will look at.
    virtual void fetch() const {}
    /// The next submit is near: backend::DeviceBackend::prime.
    virtual void prime() {}
};

/// An item's part of a batch.
[[nodiscard]] inline backend::Slice slice_of(const pd::StepItem& item) {
    backend::Slice slice;
    slice.tokens = item.tokens;
    slice.position = item.position;
    slice.blocks = item.blocks;
    slice.logits = item.sample;
    slice.sequence = item.sample ? item.sequence : nullptr;
    slice.state = item.state;
    slice.pending = item.pending;
    return slice;
}

/// Why a sequence whose constraint cannot be followed ends.
inline constexpr std::string_view kNotFollowed = "the constraint on the answer cannot be followed";

/// `slices_max`: items a plan may have. `pool` and `constraints`, which may be null, outlive the executor.
[[nodiscard]] std::unique_ptr<Executor> make_cpu_executor(std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool,
                                                          uint32_t slices_max, grammar::Constraints* constraints);
[[nodiscard]] std::unique_ptr<Executor> make_device_executor(std::unique_ptr<backend::DeviceBackend> backend,
                                                             xavier::SharedPool& pool, grammar::Constraints* constraints);

}  // namespace baton::engine
