#include <algorithm>
#include <string>

#include "baton/xavier/mover.hpp"

namespace baton::xavier {
namespace {

/// The first thing in which the pages of two pools differ.
std::string difference(const kv::PoolLayout& a, const kv::PoolLayout& b) {
    const auto numbers = [](const char* name, uint32_t x, uint32_t y) {
        return std::string(name) + " " + std::to_string(x) + " and " + std::to_string(y);
    };
    if (a.dtype != b.dtype) return numbers("dtype", a.dtype, b.dtype);
    if (a.layers != b.layers) return numbers("layers", a.layers, b.layers);
    if (a.kv_heads != b.kv_heads) return numbers("kv heads", a.kv_heads, b.kv_heads);
    if (a.head_dim != b.head_dim) return numbers("head dim", a.head_dim, b.head_dim);
    if (a.block_tokens != b.block_tokens) return numbers("block tokens", a.block_tokens, b.block_tokens);
    return "page format " + a.page_format + " and " + b.page_format;
}

/// Why a mover cannot serve the pair; "" where it can.
std::string why_not_shm(const wire::LinkHello& d, const wire::LinkHello& p, bool one_host) {
    if (d.device || p.device) return "needs both pools in host memory";
    if (!one_host) return "needs both replicas on one host";
    return "";
}

std::string why_not_cuda_ipc(const wire::LinkHello& d, const wire::LinkHello& p, bool one_host) {
    if (!d.device || !p.device) return "needs both pools on GPUs";
    if (!one_host) return "needs both replicas on one host";
    if (std::find(d.maps_gpus.begin(), d.maps_gpus.end(), p.gpu) == d.maps_gpus.end())
        return p.gpu.empty() ? "needs a pool that can be shared" : "needs a GPU that can map the memory of " + p.gpu;
    return "";
}

std::string why_not_nccl(const wire::LinkHello& d, const wire::LinkHello& p) {
    if (!d.device || !p.device) return "needs both pools on GPUs";
    for (const wire::LinkHello* side : {&d, &p})
        if (!side->nccl) return "cannot be used by a side: " + (side->nccl_reason.empty() ? "NCCL is missing" : side->nccl_reason);
    return "";
}

}  // namespace

Expected<std::string> choose_mover(const wire::LinkHello& decode, const wire::LinkHello& prefill, std::string_view forced) {
    if (decode.model != prefill.model) return fail(ErrorCode::kUnsupported, "the peers serve different models");
    BATON_TRY_ASSIGN(const kv::PoolLayout d, from_wire(decode.layout));
    BATON_TRY_ASSIGN(const kv::PoolLayout p, from_wire(prefill.layout));
    if (!d.pages_compatible(p)) return fail(ErrorCode::kUnsupported, "KV pages do not match: " + difference(d, p));
    const bool one_host = !decode.host_id.empty() && decode.host_id == prefill.host_id && decode.wants_map;
    const std::pair<const char*, std::string> movers[] = {
        {"cuda_ipc", why_not_cuda_ipc(decode, prefill, one_host)},
        {"nccl", why_not_nccl(decode, prefill)},
        {"shm", why_not_shm(decode, prefill, one_host)},
        {"tcp", ""},
    };
    for (const auto& [name, why_not] : movers) {
        if (forced.empty() && why_not.empty()) return std::string(name);
        if (forced != name) continue;
        if (!why_not.empty()) return fail(ErrorCode::kUnsupported, std::string("mover ") + name + " " + why_not);
        return std::string(name);
    }
    return fail(ErrorCode::kUnsupported, "mover '" + std::string(forced.substr(0, 64)) + "' is unknown: cuda_ipc, nccl, shm and tcp are there");
}

}  // namespace baton::xavier
