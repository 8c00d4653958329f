#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/linear_bulk.hpp"
#include "backend/cuda/linear_held.hpp"
#include "backend/cuda/linear_lt.hpp"
#include "backend/cuda/linear_ring.hpp"
#include "backend/cuda/linear_slab.hpp"

namespace baton::backend::cuda {

enum class Kind : uint8_t { kLt = 0, kGemv = 1, kTile = 2, kDirect = 3, kRing = 4, kHeld = 5, kSlab = 6, kBulk = 7 };

/// How a product runs at one bucket of m.
struct Choice {
    Kind kind = Kind::kLt;
    GemvConfig gemv;
    TileConfig tile;
    DirectConfig direct;
    RingConfig ring;
    SlabConfig slab;
    BulkConfig bulk;
    uint8_t held = 0;        ///< variant
    LtAlgo algo = {};
    float microseconds = 0;  ///< as tuned; 0: not measured
};

/// The kernel of a choice in a few words, e.g. "tile 64x16 s8c norm".
[[nodiscard]] std::string describe(const Choice& choice);

/// What a choice depends on beside m.
struct ShapeKey {
    Elem elem = Elem::kBF16;
    Out out = Out::kStore;
    bool bias = false;
    bool norm = false;
    bool deterministic = false;
    uint32_t n = 0;
    uint32_t k = 0;
    [[nodiscard]] auto tie() const { return std::tie(elem, out, bias, norm, deterministic, n, k); }
    friend bool operator<(const ShapeKey& a, const ShapeKey& b) { return a.tie() < b.tie(); }
    friend bool operator==(const ShapeKey& a, const ShapeKey& b) { return a.tie() == b.tie(); }
};

/// Buckets of m are powers of two; bucket b serves m in (2^(b-1), 2^b].
constexpr uint32_t kBuckets = 15;
[[nodiscard]] uint32_t bucket_of(uint32_t m);

/// Tuned choices by shape and bucket.
using Choices = std::map<std::pair<ShapeKey, uint32_t>, Choice>;

/// What the file's choices hold for: another GPU, library or version of ours makes them void.
struct CacheIdentity {
    std::string gpu;
    uint64_t lt_version = 0;
    [[nodiscard]] std::string file_name() const;
};
/// The file's bytes: magic, version, identity, count, records, checksum; little endian.
[[nodiscard]] std::vector<std::byte> encode_choices(const CacheIdentity& identity, const Choices& choices);
/// Errors: kCorrupt for anything torn, foreign or out of bounds. What a record says of kernels is checked for range here;
/// whether the kernel takes the product, and the library the algorithm, the user of the choice asks before it runs.
[[nodiscard]] Expected<Choices> decode_choices(const CacheIdentity& identity, std::span<const std::byte> bytes);
/// Reads the folder's file; none, or one that does not decode, gives no choices.
[[nodiscard]] Choices load_choices(const std::string& folder, const CacheIdentity& identity);
/// Writes the file beside its place and renames it over. Errors: kIo.
Expected<void> save_choices(const std::string& folder, const CacheIdentity& identity, const Choices& choices);

}  // namespace baton::backend::cuda
