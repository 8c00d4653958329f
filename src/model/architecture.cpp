#include <algorithm>
#include <array>
#include <cctype>

#include "baton/base/limits.hpp"
#include "baton/model/model.hpp"
#include "layout_check.hpp"
#include "spec.hpp"

namespace baton::model {
namespace {

/// Lower case without separators, so that "falcon-h1", "falcon_h1" and "FalconH1ForCausalLM" meet.
std::string normalised(std::string_view name) {
    std::string out;
    for (const char c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
            out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    for (const std::string_view tail :
         {"forcausallm", "forconditionalgeneration", "lmheadmodel", "model"}) {
        if (out.size() > tail.size() && out.ends_with(tail)) out.resize(out.size() - tail.size());
    }
    return out;
}

/// Architectures with recurrent state; a name that starts with one of these (qwen3next, mamba2,
/// rwkv6qwen2) counts.
constexpr std::array kRecurrentPrefixes = {
    "mamba",
    "falconmamba",
    "codestralmamba",
    "rwkv",
    "arwkv",
    "jamba",
    "bamba",
    "zamba",
    "samba",
    "qwen3next",
    "qwen35",
    "recurrentgemma",
    "griffin",
    "granitehybrid",
    "granitemoehybrid",
    "nemotronh",
    "falconh1",
    "lfm2",
    "xlstm",
    "plamo2",
    "kimilinear",
    "olmohybrid",
    "hgrn",
    "retnet",
    "gateddeltanet",
    "deltanet",
    "minimaxtext01",
    "minimaxm1",
    "bailingmoelinear",
    "ringlinear",
};

}  // namespace

bool is_recurrent_architecture(std::string_view name) {
    const std::string n = normalised(name);
    return n == "minimax" || std::any_of(kRecurrentPrefixes.begin(), kRecurrentPrefixes.end(),
                                         [&](const char* prefix) { return n.starts_with(prefix); });
}

tl::unexpected<Error> not_supported(const std::string& what) {
    return fail(ErrorCode::kUnsupported, what + " is not supported by baton yet");
}

Expected<void> check_architecture(std::string_view name) {
    for (const std::string_view known : {"llama", "qwen2", "qwen3", "mistral"}) {
        if (name == known) return {};
    }
    return not_supported("architecture '" + printable(name) + "'");
}

Expected<void> finish_spec(ModelSpec& spec) {
    backend::ModelShape& s = spec.shape;
    const auto within = [](uint64_t v, uint64_t max) { return v >= 1 && v <= max; };
    const auto bad = [](const char* what) {
        return fail(ErrorCode::kCorrupt, std::string("model configuration: ") + what);
    };
    // Far above any model, far below what could overflow a product of two in 64 bits.
    constexpr uint64_t kLayersMax = 4096;
    constexpr uint64_t kHeadsMax = 65'536;
    constexpr uint64_t kHeadDimMax = 4096;
    constexpr uint64_t kWidthMax = 1u << 24;
    if (!within(s.layers, kLayersMax)) return bad("number of layers is not usable");
    if (!within(s.heads, kHeadsMax)) return bad("number of attention heads is not usable");
    if (!within(s.kv_heads, s.heads) || s.heads % s.kv_heads != 0) {
        return bad("number of key-value heads does not divide the number of heads");
    }
    if (!within(s.head_dim, kHeadDimMax) || s.head_dim % 2 != 0)
        return bad("head dimension is not usable");
    if (uint64_t{s.heads} * s.head_dim > kWidthMax) return bad("attention width is not usable");
    if (!within(s.hidden, kWidthMax)) return bad("hidden size is not usable");
    if (!within(s.ffn, kWidthMax)) return bad("feed-forward size is not usable");
    if (!within(s.vocab, kWidthMax)) return bad("vocabulary size is not usable");
    if (s.context == 0) return bad("context length is zero");
    if (!(spec.eps > 0.0f && spec.eps < 1.0f)) return bad("norm epsilon is not usable");
    if (spec.rope.original_context == 0) spec.rope.original_context = s.context;
    if (spec.sliding_window != 0) s.context = std::min(s.context, spec.sliding_window);
    s.context = std::min(s.context, static_cast<uint32_t>(limits::kContextTokensMax));
    return {};
}

}  // namespace baton::model
