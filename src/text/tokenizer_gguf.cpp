#include <unordered_set>

#include "text/gguf_families.hpp"
#include "text/tokenizer_parts.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kByte = 6;
constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

tl::unexpected<Error> corrupt(const std::string& what) {
    return fail(ErrorCode::kCorrupt, "tokenizer: " + what);
}

/// Falcon's, whose last two steps see the spelling of bytes.
constexpr std::string_view kFalcon = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated"}]})";

Expected<PreTokenizer> pre_tokenizer(const GgufFamily& family) {
    if (family.digits_after_bytes) {
        BATON_TRY_ASSIGN(const JsonValue falcon, read_json(kFalcon, 8, 64));
        return PreTokenizer::from_json(&falcon);
    }
    std::vector<PreTokenizer::Step> steps;
    for (const std::string_view pattern : family.patterns) {
        PreTokenizer::Step step;
        BATON_TRY_ASSIGN(step.scanner, regex_scanner(std::string(pattern)));
        steps.push_back(std::move(step));
    }
    return PreTokenizer(std::move(steps), true);
}

Expected<std::vector<Bpe::Merge>> split_merges(const std::vector<std::string>& lines) {
    std::vector<Bpe::Merge> merges;
    merges.reserve(lines.size());
    for (const std::string& line : lines) {
        const size_t space = line.find(' ', 1);
        if (space == std::string::npos || space + 1 >= line.size() ||
            line.find(' ', space + 1) != std::string::npos) {
            return corrupt("merge " + std::to_string(merges.size()) + " is not a pair");
        }
        merges.push_back({line.substr(0, space), line.substr(space + 1)});
    }
    return merges;
}

Expected<void> check_fields(const GgufTokenizer& fields) {
    if (fields.tokens.empty() || fields.tokens.size() > static_cast<size_t>(kTokenIdMax) + 1) {
        return corrupt("GGUF vocabulary size is out of range");
    }
    if (!fields.token_type.empty() && fields.token_type.size() != fields.tokens.size()) {
        return corrupt("GGUF token_type and tokens differ in length");
    }
    const auto count = static_cast<int64_t>(fields.tokens.size());
    for (const int64_t id : {fields.bos, fields.eos, fields.eot, fields.unk}) {
        if (id < -1 || id >= count)
            return corrupt("GGUF special token id " + std::to_string(id) + " is out of range");
    }
    if (fields.add_bos && fields.bos < 0) return corrupt("GGUF add_bos_token without bos_token_id");
    if (fields.add_eos && fields.eos < 0) return corrupt("GGUF add_eos_token without eos_token_id");
    for (size_t id = 0; id < fields.tokens.size(); ++id) {
        if (!is_valid_utf8(fields.tokens[id]))
            return corrupt("GGUF token " + std::to_string(id) + " is not UTF-8");
        const int32_t type = fields.token_type.empty() ? kNormal : fields.token_type[id];
        if (type < 0 || type > kByte)
            return corrupt("GGUF token_type " + std::to_string(type) + " is unknown");
        if (type == kByte && byte_of_token(fields.tokens[id]) < 0)
            return corrupt("GGUF byte token " + std::to_string(id) + " is not <0xHH>");
    }
    return {};
}

/// Takes the control and user-defined tokens over as added tokens, and gives the ids that plain
/// text must not become.
std::unordered_set<TokenId> take_added(const GgufTokenizer& fields, TokenizerParts& parts) {
    std::unordered_set<TokenId> barred;
    for (size_t i = 0; i < fields.token_type.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        const int32_t type = fields.token_type[i];
        if (type == kByte || type == kUnknown) barred.insert(id);
        if (type != kControl && type != kUserDefined) continue;
        AddedToken token;
        token.id = id;
        token.content = fields.tokens[i];
        token.special = type == kControl;
        if (token.special) barred.insert(token.id);
        if (!token.content.empty()) parts.added.push_back(std::move(token));
    }
    return barred;
}

Expected<void> byte_level_parts(GgufTokenizer& fields, TokenizerParts& parts) {
    const GgufFamily* family = find_gguf_family(fields.pre);
    if (family == nullptr) {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unknown GGUF pre-tokenizer '" + fields.pre + "'");
    }
    if (family->nfc) parts.normalizer = Normalizer({Normalizer::Step{}});
    BATON_TRY_ASSIGN(parts.pre_tokenizer, pre_tokenizer(*family));
    parts.decoder = TokenDecoder::byte_level();
    BATON_TRY_ASSIGN(const std::vector<Bpe::Merge> merges, split_merges(fields.merges));
    Bpe::Options options;
    options.byte_level = parts.pre_tokenizer.byte_level();
    options.ignore_merges = family->ignore_merges;
    const std::unordered_set<TokenId> barred = take_added(fields, parts);
    BATON_TRY_ASSIGN(parts.bpe,
                     Bpe::build(std::move(fields.tokens), merges, std::move(options), barred));
    return {};
}

/// "llama": SentencePiece's BPE by scores; "gemma4": the same characters with a list of merges.
Expected<void> sentencepiece_parts(GgufTokenizer& fields, TokenizerParts& parts) {
    using Step = Normalizer::Step;
    std::vector<Step> steps;
    if (fields.add_space_prefix) {
        Step prefix;
        prefix.kind = Step::Kind::kPrepend;
        prefix.to = kMetaspace;
        steps.push_back(std::move(prefix));
    }
    Step spaces;
    spaces.kind = Step::Kind::kReplace;
    spaces.from = " ";
    spaces.to = kMetaspace;
    steps.push_back(std::move(spaces));
    parts.normalizer = Normalizer(std::move(steps));
    parts.decoder = TokenDecoder::sentencepiece(fields.add_space_prefix);
    Bpe::Options options;
    options.byte_level = false;
    options.byte_fallback = true;
    options.fuse_unk = true;
    if (fields.unk >= 0) options.unk_token = fields.tokens[static_cast<size_t>(fields.unk)];
    const std::unordered_set<TokenId> barred = take_added(fields, parts);
    if (fields.model == "llama") {
        BATON_TRY_ASSIGN(parts.bpe, Bpe::build_scored(std::move(fields.tokens), fields.scores,
                                                      std::move(options), barred));
        return {};
    }
    BATON_TRY_ASSIGN(const std::vector<Bpe::Merge> merges, split_merges(fields.merges));
    BATON_TRY_ASSIGN(parts.bpe,
                     Bpe::build(std::move(fields.tokens), merges, std::move(options), barred));
    return {};
}

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(GgufTokenizer fields) {
    BATON_TRY(check_fields(fields));
    TokenizerParts parts;
    if (fields.add_bos) parts.prefix.push_back(static_cast<TokenId>(fields.bos));
    if (fields.add_eos) parts.suffix.push_back(static_cast<TokenId>(fields.eos));
    if (fields.model == "gpt2") {
        BATON_TRY(byte_level_parts(fields, parts));
    } else if (fields.model == "llama" || fields.model == "gemma4") {
        BATON_TRY(sentencepiece_parts(fields, parts));
    } else {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unsupported GGUF tokenizer model '" + fields.model + "'");
    }
    return make_tokenizer(std::move(parts));
}

}  // namespace baton::text
