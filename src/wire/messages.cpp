#include "baton/wire/messages.hpp"

#include <array>
#include <cstring>

#include "baton/base/limits.hpp"
#include "baton/wire/codec.hpp"

namespace baton::wire {
namespace {

constexpr std::array<char, 4> kMagic{'B', 'T', 'N', '1'};

constexpr std::array kNames{"heartbeat",     "hello",          "refused",       "prefill",        "run",
                            "retarget",      "abort",          "drain",         "peers",          "replica_ready",
                            "link_state",    "token_batch",    "target_busy",   "handoff_done",   "sequence_failed",
                            "fallback",      "replica_stats",  "link_hello",    "offer",          "accept",
                            "busy",          "commit",         "release",       "withdraw",       "pull_request",
                            "extent_header", "worker_ready",   "spawn_replica", "spawn_result",   "stop_replica",
                            "replica_exited", "worker_stats",  "store_open",    "store_ready",    "store_allot",
                            "store_slots",   "store_publish",  "store_lease",   "store_unlease",
                            "weights_open",  "weights_grant",  "weights_filled",
                            "channel_pair",  "channel_extent", "channel_go",    "channel_sent",
                            "pull_model",    "cancel_pull",    "pull_progress", "pull_done",      "list_cached",
                            "cached_list"};
static_assert(kNames.size() == std::variant_size_v<Message>);

template <size_t I>
Expected<Message> decode_as(Decoder& d) {
    std::variant_alternative_t<I, Message> m;
    d(m);
    if (!d.ok()) return fail(ErrorCode::kCorrupt, std::string("malformed message ") + kNames[I]);
    return Message(std::in_place_index<I>, std::move(m));
}

using DecodeFn = Expected<Message> (*)(Decoder&);
template <size_t... I>
constexpr std::array<DecodeFn, sizeof...(I)> decode_table(std::index_sequence<I...>) {
    return {decode_as<I>...};
}
constexpr auto kDecode = decode_table(std::make_index_sequence<std::variant_size_v<Message>>{});

}  // namespace

std::vector<std::byte> encode(const Message& m) {
    CountedBytes counted;
    std::visit([&](const auto& x) { Encoder{counted}(x); }, m);
    std::vector<std::byte> out(kFrameHeaderBytes + counted.count);
    WrittenBytes written{out.data() + kFrameHeaderBytes};
    std::visit([&](const auto& x) { Encoder{written}(x); }, m);
    const auto type = static_cast<uint16_t>(m.index());
    const auto bytes = static_cast<uint32_t>(out.size() - kFrameHeaderBytes);
    std::memcpy(out.data(), kMagic.data(), 4);
    std::memcpy(out.data() + 4, &type, 2);
    std::memset(out.data() + 6, 0, 2);
    std::memcpy(out.data() + 8, &bytes, 4);
    return out;
}

Expected<FrameHeader> decode_header(std::span<const std::byte> header) {
    FrameHeader h;
    uint16_t zero = 0;
    if (header.size() != kFrameHeaderBytes || std::memcmp(header.data(), kMagic.data(), 4) != 0)
        return fail(ErrorCode::kCorrupt, "not a baton frame");
    std::memcpy(&h.type, header.data() + 4, 2);
    std::memcpy(&zero, header.data() + 6, 2);
    std::memcpy(&h.body_bytes, header.data() + 8, 4);
    if (zero != 0 || h.type >= std::variant_size_v<Message>)
        return fail(ErrorCode::kCorrupt, "unknown message type " + std::to_string(h.type));
    if (h.body_bytes > limits::kFrameBytesMax)
        return fail(ErrorCode::kCorrupt, "frame of " + std::to_string(h.body_bytes) + " bytes is over the limit");
    return h;
}

Expected<Message> decode_body(uint16_t type, std::span<const std::byte> body) {
    if (type >= kDecode.size()) return fail(ErrorCode::kCorrupt, "unknown message type " + std::to_string(type));
    Decoder d(body);
    return kDecode[type](d);
}

std::string_view name_of(const Message& m) { return kNames[m.index()]; }

}  // namespace baton::wire
