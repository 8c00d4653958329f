#include "family.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "baton/openai/json.hpp"

namespace baton::registry {
namespace {

constexpr size_t kNameBytesMax = 100;
constexpr size_t kSpecsMax = 200;
constexpr size_t kListMax = 100;
constexpr size_t kTextBytesMax = 4096;
constexpr size_t kTemplateBytesMax = 1u << 20;

tl::unexpected<Error> bad(const std::string& why, const std::string& field) { return fail(ErrorCode::kInvalidArgument, "Invalid model: " + field + " " + why, field); }

const Json* member(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

Expected<std::string> text(const Json& object, const char* key, bool needed = false) {
    const Json* v = member(object, key);
    if (v == nullptr) return needed ? Expected<std::string>(bad("is missing", key)) : std::string();
    if (!v->is_string() || v->get_ref<const std::string&>().size() > kTextBytesMax) return bad("must be a string", key);
    return v->get<std::string>();
}

Expected<std::vector<std::string>> texts(const Json& object, const char* key) {
    std::vector<std::string> out;
    const Json* v = member(object, key);
    if (v == nullptr) return out;
    if (!v->is_array() || v->size() > kListMax) return bad("must be a list of strings", key);
    for (const Json& item : *v) {
        if (!item.is_string() || item.get_ref<const std::string&>().size() > kTextBytesMax) return bad("must be a list of strings", key);
        out.push_back(item.get<std::string>());
    }
    return out;
}

bool is_name(std::string_view name) {
    const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; };
    return !name.empty() && name.size() <= kNameBytesMax && std::isalnum(static_cast<unsigned char>(name.front())) != 0 && std::all_of(name.begin(), name.end(), fits);
}

Expected<std::string> size_of(const Json& spec) {
    const Json* v = member(spec, "model_size_in_billions");
    if (v == nullptr || !(v->is_number() || v->is_string())) return bad("must be a number or a string", "model_size_in_billions");
    const std::string size = normalised_size(v->is_string() ? v->get<std::string>() : v->dump());
    const bool digits = !size.empty() && std::all_of(size.begin(), size.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_'; });
    if (!digits || size.size() > 16) return bad("must be a number of billions, such as 7 or \"0_5\"", "model_size_in_billions");
    return size;
}

/// quantizations, or quantization; "none" where neither is there.
Expected<std::vector<std::string>> quantizations_of(const Json& object) {
    BATON_TRY_ASSIGN(std::vector<std::string> all, texts(object, "quantizations"));
    BATON_TRY_ASSIGN(const std::string one, text(object, "quantization"));
    if (!one.empty() && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    if (all.empty()) all.emplace_back("none");
    return all;
}

Expected<Source> source_of(const Json& object, std::string hub) {
    Source out;
    out.hub = std::move(hub);
    BATON_TRY_ASSIGN(out.repo, text(object, "model_id", true));
    BATON_TRY_ASSIGN(out.revision, text(object, "model_revision"));
    BATON_TRY_ASSIGN(out.file_template, text(object, "model_file_name_template"));
    BATON_TRY_ASSIGN(out.quantizations, quantizations_of(object));
    if (out.hub != "huggingface" && out.hub != "modelscope") return bad("must be huggingface or modelscope", "model_hub");
    return out;
}

Expected<Spec> spec_of(const Json& object) {
    if (!object.is_object()) return bad("must be a list of objects", "model_specs");
    Spec out;
    BATON_TRY_ASSIGN(out.format, text(object, "model_format", true));
    if (out.format != "pytorch" && out.format != "ggufv2") return bad("must be pytorch or ggufv2; baton reads no other", "model_format");
    BATON_TRY_ASSIGN(out.size, size_of(object));
    BATON_TRY_ASSIGN(std::string uri, text(object, "model_uri"));
    if (uri.starts_with("file://")) uri.erase(0, 7);
    if (!uri.empty() && !uri.starts_with('/')) return bad("must be an absolute path, or file:// and one", "model_uri");
    out.path = std::move(uri);
    if (const Json* sources = member(object, "model_src"); sources != nullptr) {
        if (!sources->is_object()) return bad("must be an object of hubs", "model_src");
        for (const auto& [hub, source] : sources->items()) {
            if (!source.is_object()) return bad("must be an object of hubs", "model_src");
            if (hub != "huggingface" && hub != "modelscope") continue;  // other hubs mean nothing here
            BATON_TRY_ASSIGN(Source one, source_of(source, hub));
            out.sources.push_back(std::move(one));
        }
    } else if (member(object, "model_id") != nullptr) {
        BATON_TRY_ASSIGN(const std::string hub, text(object, "model_hub"));
        BATON_TRY_ASSIGN(Source one, source_of(object, hub.empty() ? "huggingface" : hub));
        out.sources.push_back(std::move(one));
    }
    if (out.path.empty() && out.sources.empty()) return bad("must have a model_id or a model_uri", "model_specs");
    if (out.sources.empty()) {
        BATON_TRY_ASSIGN(out.quantizations, quantizations_of(object));
    }
    for (const Source& s : out.sources)
        for (const std::string& q : s.quantizations)
            if (std::find(out.quantizations.begin(), out.quantizations.end(), q) == out.quantizations.end()) out.quantizations.push_back(q);
    return out;
}

Expected<Style> style_of(const Json& given) {
    Style out;
    if (const Json* v = member(given, "chat_template"); v != nullptr) {
        if (!v->is_string() || v->get_ref<const std::string&>().size() > kTemplateBytesMax) return bad("must be a string of at most 1 MiB", "chat_template");
        out.chat_template = v->get<std::string>();
    }
    BATON_TRY_ASSIGN(out.stop, texts(given, "stop"));
    if (std::find(out.stop.begin(), out.stop.end(), "") != out.stop.end()) return bad("must not hold an empty text", "stop");
    if (const Json* ids = member(given, "stop_token_ids"); ids != nullptr) {
        if (!ids->is_array() || ids->size() > kListMax) return bad("must be a list of token ids", "stop_token_ids");
        for (const Json& id : *ids) {
            if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) return bad("must be a list of token ids", "stop_token_ids");
            out.stop_token_ids.push_back(id.get<int32_t>());
        }
    }
    BATON_TRY_ASSIGN(out.reasoning_start, text(given, "reasoning_start_tag"));
    BATON_TRY_ASSIGN(out.reasoning_end, text(given, "reasoning_end_tag"));
    if (out.reasoning_start.empty() != out.reasoning_end.empty()) return bad("and reasoning_end_tag go together", "reasoning_start_tag");
    BATON_TRY_ASSIGN(out.tool_parser, text(given, "tool_parser"));
    return out;
}

}  // namespace

bool equal_nocase(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
    });
}

std::string normalised_size(std::string_view size) {
    std::string out(size);
    if (!out.empty() && (out.back() == 'b' || out.back() == 'B')) out.pop_back();
    std::replace(out.begin(), out.end(), '.', '_');
    // 7_0 is 7, 0_50 is 0_5.
    if (out.find('_') != std::string::npos) {
        while (out.ends_with('0')) out.pop_back();
        if (out.ends_with('_')) out.pop_back();
    }
    return out;
}

Json size_json(const std::string& size) {
    const bool whole = !size.empty() && size.size() < 9 && size.find('_') == std::string::npos;
    return whole ? Json(std::stoi(size)) : Json(size);
}

bool Family::can(std::string_view ability) const { return std::find(abilities_.begin(), abilities_.end(), ability) != abilities_.end(); }

Expected<Family> Family::parse(const Json& given, bool built_in) {
    if (!given.is_object()) return fail(ErrorCode::kInvalidArgument, "Invalid model: it must be a JSON object", "model");
    Family out;
    out.given_ = given;
    out.built_in_ = built_in;
    BATON_TRY_ASSIGN(out.name_, text(given, "model_name", true));
    if (!is_name(out.name_)) return fail(ErrorCode::kInvalidArgument, "Invalid model name " + openai::echo_input(out.name_) + ".", "model_name");
    BATON_TRY_ASSIGN(out.description_, text(given, "model_description"));
    BATON_TRY_ASSIGN(out.languages_, texts(given, "model_lang"));
    BATON_TRY_ASSIGN(out.abilities_, texts(given, "model_ability"));
    if (out.abilities_.empty()) out.abilities_ = {"generate"};
    static constexpr std::array<std::string_view, 5> kText = {"chat", "generate", "tools", "reasoning", "hybrid"};
    for (const std::string& a : out.abilities_)
        if (std::find(kText.begin(), kText.end(), a) == kText.end()) return bad("has " + openai::echo_input(a) + ", which baton does not serve", "model_ability");
    if (const Json* context = member(given, "context_length"); context != nullptr && (!context->is_number_integer() || context->get<int64_t>() < 1))
        return bad("must be a positive integer", "context_length");
    BATON_TRY_ASSIGN(out.style_, style_of(given));
    const Json* specs = member(given, "model_specs");
    if (specs == nullptr || !specs->is_array() || specs->empty() || specs->size() > kSpecsMax) return bad("must be a list of at least one", "model_specs");
    for (const Json& item : *specs) {
        BATON_TRY_ASSIGN(Spec spec, spec_of(item));
        out.specs_.push_back(std::move(spec));
    }
    return out;
}

}  // namespace baton::registry
