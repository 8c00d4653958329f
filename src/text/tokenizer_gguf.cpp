#include <array>
#include <optional>
#include <unordered_set>

#include "text/tokenizer_parts.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;

tl::unexpected<Error> corrupt(const std::string& what) {
    return fail(ErrorCode::kCorrupt, "tokenizer: " + what);
}

/// What a GGUF pre-tokenizer name stands for; GGUF has no other trace of tokenizer.json's
/// components.
struct Family {
    std::string_view name;
    enum class Split : uint8_t { kGpt2, kDigitsGpt2, kModern1, kModern3, kModernMarks } split;
    bool nfc;
    bool ignore_merges;
};

constexpr std::array<Family, 28> kFamilies{{
    {"gpt-2", Family::Split::kGpt2, false, false},
    {"gpt2", Family::Split::kGpt2, false, false},
    {"phi-2", Family::Split::kGpt2, false, false},
    {"mpt", Family::Split::kGpt2, false, false},
    {"olmo", Family::Split::kGpt2, false, false},
    {"jais", Family::Split::kGpt2, false, false},
    {"gigachat", Family::Split::kGpt2, false, false},
    {"smollm", Family::Split::kDigitsGpt2, false, false},
    {"starcoder", Family::Split::kDigitsGpt2, false, false},
    {"refact", Family::Split::kDigitsGpt2, false, false},
    {"codeshell", Family::Split::kDigitsGpt2, false, false},
    {"command-r", Family::Split::kDigitsGpt2, true, false},
    {"qwen2", Family::Split::kModern1, true, false},
    {"deepseek-r1-qwen", Family::Split::kModern1, true, false},
    {"qwen35", Family::Split::kModernMarks, true, false},
    {"stablelm2", Family::Split::kModern1, true, false},
    {"llama-bpe", Family::Split::kModern3, false, true},
    {"llama3", Family::Split::kModern3, false, true},
    {"llama-v3", Family::Split::kModern3, false, true},
    {"falcon3", Family::Split::kModern3, false, true},
    {"falcon-h1", Family::Split::kModern3, false, true},
    {"pixtral", Family::Split::kModern3, false, true},
    {"midm-2.0", Family::Split::kModern3, false, true},
    {"lfm2", Family::Split::kModern3, false, true},
    {"dbrx", Family::Split::kModern3, false, false},
    {"smaug-bpe", Family::Split::kModern3, false, false},
    {"jina-v2-code", Family::Split::kGpt2, false, false},
    {"roberta-bpe", Family::Split::kGpt2, false, false},
}};

const Family* find_family(std::string_view name) {
    for (const Family& family : kFamilies) {
        if (family.name == name) return &family;
    }
    return nullptr;
}

PreTokenizer pre_tokenizer(Family::Split split) {
    std::vector<PreTokenizer::Step> steps;
    const auto add = [&steps](std::shared_ptr<const SplitScanner> scanner) {
        PreTokenizer::Step step;
        step.scanner = std::move(scanner);
        steps.push_back(std::move(step));
    };
    switch (split) {
        case Family::Split::kGpt2:
            add(gpt2_scanner());
            break;
        case Family::Split::kDigitsGpt2:
            add(class_scanner(kNumber));
            add(gpt2_scanner());
            break;
        case Family::Split::kModern1:
            add(modern_scanner({1, false}));
            break;
        case Family::Split::kModern3:
            add(modern_scanner({3, false}));
            break;
        case Family::Split::kModernMarks:
            add(modern_scanner({1, true}));
            break;
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
    if (fields.model != "gpt2") {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unsupported GGUF tokenizer model '" + fields.model + "'");
    }
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
    for (size_t id = 0; id < fields.tokens.size(); ++id) {
        if (!is_valid_utf8(fields.tokens[id]))
            return corrupt("GGUF token " + std::to_string(id) + " is not UTF-8");
    }
    return {};
}

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(GgufTokenizer fields) {
    BATON_TRY(check_fields(fields));
    const Family* family = find_family(fields.pre);
    if (family == nullptr) {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unknown GGUF pre-tokenizer '" + fields.pre + "'");
    }
    TokenizerParts parts;
    if (family->nfc) parts.normalizer = Normalizer({Normalizer::Step{}});
    parts.pre_tokenizer = pre_tokenizer(family->split);
    parts.decoder = TokenDecoder::byte_level();
    if (fields.add_bos) parts.prefix.push_back(static_cast<TokenId>(fields.bos));
    std::unordered_set<TokenId> barred;
    for (size_t id = 0; id < fields.token_type.size(); ++id) {
        const int32_t type = fields.token_type[id];
        if (type < 0 || type > 6)
            return corrupt("GGUF token_type " + std::to_string(type) + " is unknown");
        if (type != kControl && type != kUserDefined) continue;
        AddedToken token;
        token.id = static_cast<TokenId>(id);
        token.content = fields.tokens[id];
        token.special = type == kControl;
        if (token.special) barred.insert(token.id);
        if (!token.content.empty()) parts.added.push_back(std::move(token));
    }
    BATON_TRY_ASSIGN(const std::vector<Bpe::Merge> merges, split_merges(fields.merges));
    Bpe::Options options;
    options.ignore_merges = family->ignore_merges;
    BATON_TRY_ASSIGN(parts.bpe,
                     Bpe::build(std::move(fields.tokens), merges, std::move(options), barred));
    return make_tokenizer(std::move(parts));
}

}  // namespace baton::text
