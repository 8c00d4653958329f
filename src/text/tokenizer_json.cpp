#include <algorithm>
#include <unordered_set>

#include "baton/base/limits.hpp"
#include "text/json.hpp"
#include "text/tokenizer_parts.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr size_t kJsonDepth = 32;
constexpr size_t kJsonNodesMax = 4'000'000;

tl::unexpected<Error> corrupt(const std::string& what) {
    return fail(ErrorCode::kCorrupt, "tokenizer: " + what);
}

Expected<TokenId> token_id(const JsonValue* value, const char* where) {
    const int64_t id = value == nullptr ? -1 : value->int_or(-1);
    if (id < 0 || id > kTokenIdMax)
        return corrupt(std::string(where) + " has a token id out of range");
    return static_cast<TokenId>(id);
}

Expected<std::vector<std::string>> read_vocab(JsonValue& model) {
    JsonValue* vocab = nullptr;
    for (auto& [key, value] : model.members) {
        if (key == "vocab" && value.is_object()) vocab = &value;
    }
    if (vocab == nullptr) return corrupt("model has no vocab object");
    TokenId last = -1;
    for (const auto& [spelling, value] : vocab->members) {
        BATON_TRY_ASSIGN(const TokenId id, token_id(&value, "vocab"));
        last = std::max(last, id);
    }
    if (static_cast<size_t>(last) + 1 > vocab->members.size() * 2 + 65'536)
        return corrupt("vocab ids are too sparse");
    std::vector<std::string> tokens(static_cast<size_t>(last) + 1);
    for (auto& [spelling, value] : vocab->members) {
        std::string& slot = tokens[static_cast<size_t>(value.int_or(0))];
        if (!slot.empty()) return corrupt("vocab gives id " + value.text + " twice");
        slot = std::move(spelling);
    }
    return tokens;
}

Expected<std::vector<Bpe::Merge>> read_merges(JsonValue& model) {
    JsonValue* list = nullptr;
    for (auto& [key, value] : model.members) {
        if (key == "merges" && value.is_array()) list = &value;
    }
    if (list == nullptr) return corrupt("model has no merges array");
    std::vector<Bpe::Merge> merges;
    merges.reserve(list->items.size());
    for (JsonValue& item : list->items) {
        Bpe::Merge merge;
        if (item.is_array() && item.items.size() == 2 && item.items[0].is_string() &&
            item.items[1].is_string()) {
            merge = {std::move(item.items[0].text), std::move(item.items[1].text)};
        } else if (item.is_string() && std::count(item.text.begin(), item.text.end(), ' ') == 1) {
            const size_t space = item.text.find(' ');
            merge = {item.text.substr(0, space), item.text.substr(space + 1)};
        } else {
            return corrupt("merge " + std::to_string(merges.size()) + " is not a pair");
        }
        merges.push_back(std::move(merge));
    }
    return merges;
}

Expected<std::vector<AddedToken>> read_added(const JsonValue& root) {
    std::vector<AddedToken> tokens;
    const JsonValue* list = root.find("added_tokens");
    if (list == nullptr || list->is_null()) return tokens;
    if (!list->is_array()) return corrupt("added_tokens is not an array");
    for (const JsonValue& item : list->items) {
        AddedToken token;
        BATON_TRY_ASSIGN(token.id, token_id(item.find("id"), "added_tokens"));
        const JsonValue* content = item.find("content");
        if (content == nullptr || !content->is_string())
            return corrupt("an added token has no content");
        token.content = content->text;
        token.single_word = item.bool_or("single_word", false);
        token.lstrip = item.bool_or("lstrip", false);
        token.rstrip = item.bool_or("rstrip", false);
        token.special = item.bool_or("special", false);
        token.normalized = item.bool_or("normalized", !token.special);
        if (!token.content.empty()) tokens.push_back(std::move(token));
    }
    return tokens;
}

Expected<void> read_template(const JsonValue& config, TokenizerParts& parts) {
    const JsonValue* single = config.find("single");
    const JsonValue* specials = config.find("special_tokens");
    if (single == nullptr || !single->is_array())
        return corrupt("TemplateProcessing without 'single'");
    bool seen_text = false;
    for (const JsonValue& item : single->items) {
        if (item.find("Sequence") != nullptr) {
            if (seen_text) return corrupt("TemplateProcessing uses the text twice");
            seen_text = true;
            continue;
        }
        const JsonValue* special = item.find("SpecialToken");
        if (special == nullptr || specials == nullptr)
            return corrupt("malformed TemplateProcessing");
        const JsonValue* entry = specials->find(special->string_or_empty("id"));
        const JsonValue* ids = entry == nullptr ? nullptr : entry->find("ids");
        if (ids == nullptr || !ids->is_array())
            return corrupt("TemplateProcessing names an unknown special token");
        for (const JsonValue& value : ids->items) {
            BATON_TRY_ASSIGN(const TokenId id, token_id(&value, "post_processor"));
            (seen_text ? parts.suffix : parts.prefix).push_back(id);
        }
    }
    return {};
}

Expected<void> read_post_processor(const JsonValue* config, int depth, TokenizerParts& parts) {
    if (config == nullptr || config->is_null()) return {};
    const std::string_view type = config->string_or_empty("type");
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "TemplateProcessing") return read_template(*config, parts);
    const JsonValue* list = config->find("processors");
    if (type == "Sequence" && list != nullptr && list->is_array() && depth < 4) {
        for (const JsonValue& item : list->items)
            BATON_TRY(read_post_processor(&item, depth + 1, parts));
        return {};
    }
    return fail(ErrorCode::kUnsupported,
                "tokenizer: unsupported post_processor '" + std::string(type) + "'");
}

Expected<Bpe::Options> read_options(const JsonValue& model, bool byte_level) {
    const std::string_view type = model.string_or_empty("type");
    if (type != "BPE" && !(type.empty() && model.find("merges") != nullptr)) {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unsupported model '" + std::string(type) + "'");
    }
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        if (!model.string_or_empty(affix).empty()) {
            return fail(ErrorCode::kUnsupported,
                        std::string("tokenizer: unsupported BPE option '") + affix + "'");
        }
    }
    const JsonValue* dropout = model.find("dropout");
    if (dropout != nullptr && !dropout->is_null() && dropout->text != "0.0" &&
        dropout->text != "0") {
        return fail(ErrorCode::kUnsupported, "tokenizer: unsupported BPE option 'dropout'");
    }
    Bpe::Options options;
    options.byte_level = byte_level;
    options.byte_fallback = model.bool_or("byte_fallback", false);
    options.fuse_unk = model.bool_or("fuse_unk", false);
    options.ignore_merges = model.bool_or("ignore_merges", false);
    options.unk_token = model.string_or_empty("unk_token");
    return options;
}

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json) {
    if (tokenizer_json.size() > limits::kModelHeaderBytesMax)
        return corrupt("tokenizer.json is larger than 100 MiB");
    auto parsed = read_json(tokenizer_json, kJsonDepth, kJsonNodesMax);
    if (!parsed) return corrupt("tokenizer.json: " + parsed.error().message);
    JsonValue& root = *parsed;
    JsonValue* model = nullptr;
    for (auto& [key, value] : root.members) {
        if (key == "model" && value.is_object()) model = &value;
    }
    if (model == nullptr) return corrupt("tokenizer.json has no model");

    TokenizerParts parts;
    BATON_TRY_ASSIGN(parts.normalizer, Normalizer::from_json(root.find("normalizer")));
    BATON_TRY_ASSIGN(parts.pre_tokenizer, PreTokenizer::from_json(root.find("pre_tokenizer")));
    const bool byte_level = parts.pre_tokenizer.byte_level();
    BATON_TRY_ASSIGN(parts.decoder, TokenDecoder::from_json(root.find("decoder"), byte_level));
    BATON_TRY(read_post_processor(root.find("post_processor"), 0, parts));
    BATON_TRY_ASSIGN(parts.added, read_added(root));
    BATON_TRY_ASSIGN(Bpe::Options options, read_options(*model, byte_level));
    BATON_TRY_ASSIGN(std::vector<std::string> tokens, read_vocab(*model));
    BATON_TRY_ASSIGN(const std::vector<Bpe::Merge> merges, read_merges(*model));
    std::unordered_set<TokenId> barred;
    for (const AddedToken& token : parts.added) {
        if (token.special) barred.insert(token.id);
    }
    BATON_TRY_ASSIGN(parts.bpe, Bpe::build(std::move(tokens), merges, std::move(options), barred));
    return make_tokenizer(std::move(parts));
}

}  // namespace baton::text
