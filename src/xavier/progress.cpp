#include "xavier/progress.hpp"

#include <algorithm>

#include "baton/base/check.hpp"

namespace baton::xavier {

Ready ready_blocks(Progress p, uint32_t tokens, uint32_t block_tokens, uint32_t layers) {
    const uint32_t blocks = tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
    const auto complete = [&](uint32_t positions) { return positions >= tokens ? blocks : positions / block_tokens; };
    if (p.layers >= layers) return {0, 0, complete(std::max(p.begin, p.end))};
    return {complete(p.end), p.layers, complete(p.begin)};
}

ExtentCursor::ExtentCursor(uint32_t layers, uint32_t indices)
    : indices_(indices), next_(layers, 0), left_(uint64_t{layers} * indices) {}

uint64_t ExtentCursor::pending_pairs(const Ready& ready) const {
    uint64_t pairs = 0;
    for (uint32_t layer = 0; layer < next_.size(); ++layer) {
        const uint32_t target = std::min(ready.in_layer(layer), indices_);
        pairs += target > next_[layer] ? target - next_[layer] : 0;
    }
    return pairs;
}

std::optional<Extent> ExtentCursor::next(const Ready& ready, uint64_t pairs_max) const {
    BATON_DCHECK(pairs_max >= 1);
    const auto target = [&](uint32_t layer) { return std::min(ready.in_layer(layer), indices_); };
    const auto count = static_cast<uint32_t>(next_.size());
    uint32_t first = 0;
    while (first < count && target(first) <= next_[first]) ++first;
    if (first == count) return std::nullopt;
    Extent e{first, 1, next_[first], target(first) - next_[first]};
    while (first + e.layers < count && e.layers < pairs_max && next_[first + e.layers] == e.first_index &&
           target(first + e.layers) == target(first))
        ++e.layers;
    e.indices = static_cast<uint32_t>(std::clamp<uint64_t>(pairs_max / e.layers, 1, e.indices));
    return e;
}

bool ExtentCursor::accepts(const Extent& e) const {
    if (e.layers == 0 || e.indices == 0 || e.first_layer >= next_.size() || e.layers > next_.size() - e.first_layer ||
        e.first_index >= indices_ || e.indices > indices_ - e.first_index)
        return false;
    return std::all_of(next_.begin() + e.first_layer, next_.begin() + e.first_layer + e.layers,
                       [&](uint32_t n) { return n == e.first_index; });
}

void ExtentCursor::advance(const Extent& e) {
    BATON_DCHECK(accepts(e));
    for (uint32_t layer = e.first_layer; layer < e.first_layer + e.layers; ++layer) next_[layer] += e.indices;
    left_ -= e.pairs();
}

}  // namespace baton::xavier
