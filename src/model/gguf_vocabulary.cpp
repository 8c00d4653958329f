#include "gguf_vocabulary.hpp"

namespace baton::model {

Expected<int64_t> gguf_token_id(const GgufFile& file, const char* key, size_t tokens) {
    if (!file.has(key)) return int64_t{-1};
    BATON_TRY_ASSIGN(const uint64_t id, file.get_uint(key));
    // Writers put -1 as 2^32 - 1 where a model has none.
    if (id == UINT32_MAX) return int64_t{-1};
    if (id >= tokens)
        return fail(ErrorCode::kCorrupt, std::string("GGUF metadata '") + key + "' is no token");
    return static_cast<int64_t>(id);
}

namespace {

/// A flag, or `otherwise` where the file has none.
Expected<bool> flag(const GgufFile& file, const char* key, bool otherwise) {
    if (!file.has(key)) return otherwise;
    return file.get_bool(key);
}

Expected<void> read_flags(const GgufFile& file, text::GgufTokenizer& t) {
    const bool scored = t.model == "llama";
    // Files written before the keys existed: Llama 3's, and SentencePiece's by its own default.
    BATON_TRY_ASSIGN(t.add_bos, flag(file, "tokenizer.ggml.add_bos_token",
                                     t.pre == "llama-bpe" || (scored && t.bos >= 0)));
    BATON_TRY_ASSIGN(t.add_eos, flag(file, "tokenizer.ggml.add_eos_token", false));
    BATON_TRY_ASSIGN(t.add_space_prefix, flag(file, "tokenizer.ggml.add_space_prefix", scored));
    // What SentencePiece may do to a text besides; no model of baton's families asks for it.
    constexpr const char* kCharsmap = "tokenizer.ggml.precompiled_charsmap";
    constexpr const char* kSqueeze = "tokenizer.ggml.remove_extra_whitespaces";
    BATON_TRY_ASSIGN(const bool squeeze, flag(file, kSqueeze, false));
    if (scored && (squeeze || file.has(kCharsmap))) {
        return fail(ErrorCode::kUnsupported, std::string("unsupported GGUF metadata '") +
                                                 (squeeze ? kSqueeze : kCharsmap) + "'");
    }
    return {};
}

}  // namespace

Expected<text::GgufTokenizer> gguf_tokenizer(const GgufFile& file) {
    text::GgufTokenizer t;
    BATON_TRY_ASSIGN(t.model, file.get_string("tokenizer.ggml.model"));
    if (file.has("tokenizer.ggml.pre")) {
        BATON_TRY_ASSIGN(t.pre, file.get_string("tokenizer.ggml.pre"));
    }
    BATON_TRY_ASSIGN(t.tokens, file.get_strings("tokenizer.ggml.tokens"));
    if (file.has("tokenizer.ggml.token_type")) {
        BATON_TRY_ASSIGN(t.token_type, file.get_ints("tokenizer.ggml.token_type"));
        if (t.token_type.size() != t.tokens.size()) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF tokenizer.ggml.token_type does not match the tokens");
        }
    } else {
        t.token_type.assign(t.tokens.size(), 1);
    }
    if (file.has("tokenizer.ggml.merges")) {
        BATON_TRY_ASSIGN(t.merges, file.get_strings("tokenizer.ggml.merges"));
    }
    const size_t n = t.tokens.size();
    BATON_TRY_ASSIGN(t.bos, gguf_token_id(file, "tokenizer.ggml.bos_token_id", n));
    BATON_TRY_ASSIGN(t.eos, gguf_token_id(file, "tokenizer.ggml.eos_token_id", n));
    BATON_TRY_ASSIGN(t.eot, gguf_token_id(file, "tokenizer.ggml.eot_token_id", n));
    BATON_TRY_ASSIGN(t.unk, gguf_token_id(file, "tokenizer.ggml.unknown_token_id", n));
    if (file.has("tokenizer.ggml.scores")) {
        BATON_TRY_ASSIGN(t.scores, file.get_floats("tokenizer.ggml.scores"));
        if (t.scores.size() != n)
            return fail(ErrorCode::kCorrupt,
                        "GGUF tokenizer.ggml.scores does not match the tokens");
    }
    BATON_TRY(read_flags(file, t));
    return t;
}

}  // namespace baton::model
