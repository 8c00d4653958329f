#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"
#include "baton/model/stored_tensor.hpp"
#include "spec.hpp"

namespace baton::model {

/// Whose names the weights carry.
enum class Naming : uint8_t { kHuggingFace, kGguf };

/// Bytes a plan owns itself: converted norms and biases, reordered rows.
using OwnedBytes = std::deque<std::vector<std::byte>>;

/// Turns a spec and the tensors of a model's files into a plan. Every tensor's shape and type is
/// checked, and every tensor of the files must be one that the family uses: a stray one means the
/// architecture is not what it says.
class PlanBuilder {
  public:
    /// `copy` false checks everything but leaves reordered weights as they are in the file: for
    /// inspection only.
    PlanBuilder(const ModelSpec& spec, Naming naming,
                const std::vector<const StoredTensor*>& tensors, OwnedBytes& owned, bool copy);
    /// The plan without its `storage`.
    [[nodiscard]] Expected<backend::Plan> build();

  private:
    using View = tensor::TensorView;
    [[nodiscard]] std::string layer_name(uint32_t layer, const char* hf, const char* gguf) const;
    [[nodiscard]] const char* pick(const char* hf, const char* gguf) const;
    [[nodiscard]] const StoredTensor* find(const std::string& name);
    [[nodiscard]] Expected<View> matrix(const std::string& name, size_t rows, size_t columns);
    [[nodiscard]] Expected<View> vector_f32(const std::string& name, size_t n);
    [[nodiscard]] Expected<View> bias(const std::string& projection, size_t n, Bias policy);
    [[nodiscard]] Expected<backend::MatMul> projection(const std::string& name, backend::Slot in,
                                                       backend::Slot out, size_t rows,
                                                       size_t columns, Bias policy);
    [[nodiscard]] View deinterleave(View rows, uint32_t heads);
    [[nodiscard]] Expected<void> attention(uint32_t layer, std::vector<backend::Step>& steps);
    [[nodiscard]] Expected<void> feed_forward(uint32_t layer, std::vector<backend::Step>& steps);
    [[nodiscard]] Expected<backend::Rope> rope();
    [[nodiscard]] Expected<void> refuse_strays() const;
    [[nodiscard]] std::span<std::byte> own(size_t bytes);

    const ModelSpec& spec_;
    Naming naming_;
    std::map<std::string_view, const StoredTensor*> tensors_;
    std::set<std::string_view> used_;
    OwnedBytes& owned_;
    bool copy_;
};

}  // namespace baton::model
