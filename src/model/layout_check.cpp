#include "layout_check.hpp"

#include <algorithm>
#include <limits>
#include <set>

namespace baton::model {

std::string printable(std::string_view text) {
    constexpr size_t kShownBytes = 80;
    std::string out(text.substr(0, kShownBytes));
    for (char& c : out) {
        if (c < 0x20 || c > 0x7e) c = '?';
    }
    if (text.size() > kShownBytes) out += "...";
    return out;
}

std::optional<uint64_t> stored_bytes(const std::vector<uint64_t>& shape, uint64_t elements,
                                     uint64_t bytes) {
    // Kept well below 2^64 so that sums with file offsets cannot wrap either.
    constexpr uint64_t kMax = uint64_t{1} << 60;
    uint64_t product = 1;
    for (const uint64_t dim : shape) {
        if (dim > kMax || (dim != 0 && product > kMax / dim)) return std::nullopt;
        product *= dim;
    }
    const uint64_t innermost = shape.empty() ? 1 : shape.back();
    if (innermost % elements != 0) return std::nullopt;
    const uint64_t blocks = product / elements;
    if (blocks > kMax / bytes) return std::nullopt;
    return blocks * bytes;
}

Expected<void> check_tensor_layout(const std::vector<StoredTensor>& tensors,
                                   std::span<const std::byte> data, bool packed) {
    std::set<std::string_view> names;
    std::vector<const StoredTensor*> order;
    order.reserve(tensors.size());
    for (const StoredTensor& t : tensors) {
        if (!names.insert(t.name).second) {
            return fail(ErrorCode::kCorrupt, "tensor '" + printable(t.name) + "' is there twice");
        }
        if (!t.bytes.empty()) order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); });
    const std::byte* end = data.data();
    for (const StoredTensor* t : order) {
        if (t->bytes.data() < end) {
            return fail(ErrorCode::kCorrupt,
                        "tensor '" + printable(t->name) + "' overlaps another");
        }
        if (packed && t->bytes.data() != end) {
            return fail(ErrorCode::kCorrupt,
                        "bytes before tensor '" + printable(t->name) + "' belong to no tensor");
        }
        end = t->bytes.data() + t->bytes.size();
    }
    if (packed && end != data.data() + data.size()) {
        return fail(ErrorCode::kCorrupt, "bytes after the last tensor belong to no tensor");
    }
    return {};
}

}  // namespace baton::model
