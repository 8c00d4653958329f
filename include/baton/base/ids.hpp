#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace baton {

using TokenId = int32_t;

/// A number that names one kind of thing; two kinds never mix.
template <class Tag>
struct Id {
    uint64_t value = 0;
    friend constexpr auto operator<=>(Id, Id) = default;
    explicit constexpr operator bool() const { return value != 0; }
};

/// One sequence of one request, unique in the life of a supervisor. 0 is none.
using SequenceId = Id<struct SequenceTag>;
/// One slot of a deployment's topology (0-based index + 1); it stays when the process behind it is replaced. 0 is none.
using ReplicaId = Id<struct ReplicaTag>;
/// The incarnation of a replica process: raised by the supervisor for each spawn. 0 is none.
using Epoch = Id<struct EpochTag>;
/// One prefill replica's offer of one sequence's KV, unique within that replica's epoch. 0 is none.
using OfferId = Id<struct OfferTag>;

/// A block slot of one KV pool.
using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;
/// Raised before a block slot is used again. Never 0 for a slot in use.
using Generation = uint32_t;

enum class Role : uint8_t { kHybrid = 0, kPrefill = 1, kDecode = 2 };
[[nodiscard]] const char* to_string(Role role);

}  // namespace baton

template <class Tag>
struct std::hash<baton::Id<Tag>> {
    size_t operator()(baton::Id<Tag> id) const noexcept { return std::hash<uint64_t>{}(id.value); }
};
