#include "baton/registry/registry.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "baton/base/check.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/log.hpp"
#include "baton/base/split_name.hpp"
#include "baton/openai/json.hpp"
#include "baton/text/chat_template.hpp"
#include "family.hpp"
#include "families_text.hpp"

namespace baton::registry {
namespace {

constexpr size_t kRegisteredMax = 1000;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

tl::unexpected<Error> not_found(std::string_view name) {
    return fail(ErrorCode::kInvalidArgument, "Model " + openai::echo_input(name) + " not found", "model_name");
}

/// "7, 14 or 32".
std::string alternatives(const std::vector<std::string>& items) {
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : i + 1 == items.size() ? " or " : ", ") + items[i];
    return out;
}

template <class List>
void add_once(List& list, const std::string& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

bool has_nocase(const std::vector<std::string>& list, std::string_view item) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& i) { return equal_nocase(i, item); });
}

std::string spelled(const std::vector<std::string>& list, std::string_view item) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const std::string& i) { return equal_nocase(i, item); });
    return it == list.end() ? std::string(item) : *it;
}

std::string file_name(const Source& source, const std::string& quantization) {
    std::string name = source.file_template;
    if (const size_t at = name.find("{quantization}"); at != std::string::npos) name.replace(at, 14, quantization);
    return name;
}

/// The choices of one launch, narrowed one field after the other; each says what was allowed.
class Choice {
  public:
    Choice(const Family& family, const Wanted& wanted, const Style& style) : family_(family), wanted_(wanted), style_(style) {
        for (const Spec& s : family.specs()) left_.push_back(&s);
    }

    Expected<void> by_size() {
        std::vector<std::string> sizes;
        for (const Spec* s : left_) add_once(sizes, s->size);
        if (wanted_.size.empty()) {
            if (sizes.size() == 1) return {};
            return fail(ErrorCode::kInvalidArgument, name() + " has several sizes; choose model_size_in_billions " + alternatives(sizes), "model_size_in_billions");
        }
        const std::string size = normalised_size(wanted_.size);
        std::erase_if(left_, [&](const Spec* s) { return s->size != size; });
        if (!left_.empty()) return {};
        return fail(ErrorCode::kInvalidArgument, name() + " has no size " + openai::echo_input(wanted_.size) + "; it has " + alternatives(sizes), "model_size_in_billions");
    }

    Expected<void> by_format() {
        std::vector<std::string> formats;
        for (const Spec* s : left_) add_once(formats, s->format);
        std::string format = wanted_.format;
        if (format.empty() && formats.size() > 1) {
            // Safetensors, unless the quantization is another format's.
            const bool elsewhere = !wanted_.quantization.empty() && std::none_of(left_.begin(), left_.end(), [&](const Spec* s) {
                return s->format == "pytorch" && has_nocase(s->quantizations, wanted_.quantization);
            });
            format = elsewhere ? "ggufv2" : "pytorch";
        }
        if (format.empty()) return {};
        std::erase_if(left_, [&](const Spec* s) { return !equal_nocase(s->format, format); });
        if (!left_.empty()) return {};
        return fail(ErrorCode::kInvalidArgument, name() + " in that size has no format " + openai::echo_input(format) + "; it has " + alternatives(formats), "model_format");
    }

    Expected<std::string> by_quantization() {
        std::vector<std::string> all;
        for (const Spec* s : left_)
            for (const std::string& q : s->quantizations) add_once(all, q);
        if (wanted_.quantization.empty()) {
            if (has_nocase(all, "none")) return std::string("none");
            if (all.size() == 1) return all.front();
            return fail(ErrorCode::kInvalidArgument, name() + " has several quantizations in that size; choose quantization " + alternatives(all), "quantization");
        }
        std::erase_if(left_, [&](const Spec* s) { return !has_nocase(s->quantizations, wanted_.quantization); });
        if (!left_.empty()) return spelled(all, wanted_.quantization);
        return fail(ErrorCode::kInvalidArgument, name() + " in that size has no quantization " + openai::echo_input(wanted_.quantization) + "; it has " + alternatives(all), "quantization");
    }

    Expected<Resolved> by_hub(const std::string& quantization, std::string_view default_hub) {
        Resolved out;
        out.quantization = quantization;
        std::vector<std::string> hubs;
        const Source* chosen = nullptr;
        for (const Spec* s : left_) {
            if (!s->path.empty() && wanted_.hub.empty()) {
                fill(out, *s);
                out.path = s->path;
                return out;
            }
            for (const Source& source : s->sources) {
                if (!has_nocase(source.quantizations, quantization)) continue;
                add_once(hubs, source.hub);
                const bool fits = wanted_.hub.empty() ? source.hub == default_hub || chosen == nullptr : equal_nocase(source.hub, wanted_.hub);
                if (!fits || (chosen != nullptr && chosen->hub == default_hub)) continue;
                chosen = &source;
                fill(out, *s);
            }
        }
        if (chosen == nullptr)
            return fail(ErrorCode::kInvalidArgument, name() + " is not on the hub " + openai::echo_input(wanted_.hub) + "; it is on " + alternatives(hubs), "download_hub");
        out.hub = chosen->hub;
        out.repo = chosen->repo;
        out.revision = chosen->revision;
        out.gguf_file = file_name(*chosen, quantization);
        return out;
    }

  private:
    std::string name() const { return "model '" + family_.name() + "'"; }
    void fill(Resolved& out, const Spec& spec) const {
        out.format = spec.format;
        out.size = spec.size;
        out.abilities = family_.abilities();
        out.languages = family_.languages();
        out.description = family_.description();
        out.style = style_;
    }

    const Family& family_;
    const Wanted& wanted_;
    const Style& style_;
    std::vector<const Spec*> left_;
};

/// A family in the API's form: what was given, with its specs in one way of writing.
Json shown(const Family& family, bool detailed, const Registry::IsCached& is_cached) {
    if (!detailed) return {{"model_name", family.name()}, {"is_builtin", family.built_in()}};
    Json out = family.given();
    out["is_builtin"] = family.built_in();
    out["model_ability"] = family.abilities();
    out["model_lang"] = family.languages();
    out["model_description"] = family.description();
    if (!out.contains("version")) out["version"] = 2;
    if (!out.contains("context_length")) out["context_length"] = nullptr;
    if (!out.contains("model_family")) out["model_family"] = family.name();
    Json specs = Json::array();
    std::vector<std::string> hubs;
    for (const Spec& s : family.specs()) {
        Json spec = {{"model_format", s.format}, {"model_size_in_billions", size_json(s.size)}, {"quantizations", s.quantizations}};
        spec["model_uri"] = s.path.empty() ? Json(nullptr) : Json("file://" + s.path);
        spec["model_id"] = nullptr;
        spec["model_hub"] = nullptr;
        Json sources = Json::object(), cached = Json::array();
        for (const Source& source : s.sources) {
            add_once(hubs, source.hub);
            if (spec["model_id"].is_null()) {
                spec["model_id"] = source.repo;
                spec["model_hub"] = source.hub;
            }
            Json one = {{"model_id", source.repo}, {"quantizations", source.quantizations}};
            if (!source.file_template.empty()) one["model_file_name_template"] = source.file_template;
            sources[source.hub] = std::move(one);
        }
        for (const std::string& q : s.quantizations)
            cached.push_back(!s.path.empty() || (is_cached && std::any_of(s.sources.begin(), s.sources.end(), [&](const Source& x) { return is_cached(x.hub, x.repo, s.format, q); })));
        spec["model_src"] = std::move(sources);
        spec["cache_status"] = s.format == "ggufv2" ? cached : cached.front();
        specs.push_back(std::move(spec));
    }
    out["model_specs"] = std::move(specs);
    out["download_hubs"] = hubs;
    return out;
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

}  // namespace

Registry::Registry(std::string state_file) : state_file_(std::move(state_file)) {
    const Json built_in = Json::parse(families_text());
    for (const Json& item : built_in) {
        auto family = Family::parse(item, true);
        BATON_CHECK(family.has_value());
        const std::string name = family->name();
        families_[name] = std::make_unique<Family>(std::move(*family));
    }
    if (!state_file_.empty()) load();
}

Registry::~Registry() = default;

const Family* Registry::find(std::string_view name) const {
    const auto it = families_.find(std::string(name));
    return it == families_.end() ? nullptr : it->second.get();
}

/// The family's own; where its template is the name of another one that one's, as far as it has any.
Style Registry::style_of(const Family& family) const {
    const Family* other = find(family.style().chat_template);
    if (other == nullptr) return family.style();
    Style out = other->style();
    if (find(out.chat_template) != nullptr) out.chat_template.clear();  // names one itself: the files say it then
    if (out.stop.empty()) out.stop = family.style().stop;
    if (out.stop_token_ids.empty()) out.stop_token_ids = family.style().stop_token_ids;
    if (out.reasoning_start.empty()) {
        out.reasoning_start = family.style().reasoning_start;
        out.reasoning_end = family.style().reasoning_end;
    }
    if (out.tool_parser.empty()) out.tool_parser = family.style().tool_parser;
    return out;
}

/// A template is the name of a family, or a template that can be rendered.
Expected<void> Registry::check_style(const Style& style) const {
    if (style.chat_template.empty() || find(style.chat_template) != nullptr) return {};
    if (style.chat_template.find("{{") == std::string::npos && style.chat_template.find("{%") == std::string::npos)
        return fail(ErrorCode::kInvalidArgument, "Invalid model: chat_template is neither a template nor the name of a model known here", "chat_template");
    auto compiled = text::ChatTemplate::compile(style.chat_template);
    if (compiled) return {};
    return fail(ErrorCode::kInvalidArgument, "Invalid model: chat_template: " + compiled.error().message, "chat_template");
}

std::string Registry::known_names() const {
    std::vector<std::string> names;
    for (const auto& [name, family] : families_)
        if (names.size() < 50) names.push_back(name);
    return alternatives(names);
}

Expected<Resolved> Registry::resolve(const Wanted& wanted, std::string_view default_hub) const {
    const Family* family = find(wanted.name);
    if (family == nullptr && wanted.name.find('/') != std::string::npos) {
        Resolved out;
        out.direct = true;
        out.hub = wanted.hub.empty() ? std::string(default_hub) : lower(wanted.hub);
        out.repo = wanted.name;
        out.format = wanted.format;
        out.quantization = wanted.quantization;
        out.size = normalised_size(wanted.size);
        return out;
    }
    if (family == nullptr)
        return fail(ErrorCode::kInvalidArgument, "model '" + openai::echo_input(wanted.name) + "' is not known by name here; give its files with model_path, a repository as org/name, or one of " + known_names(), "model_name");
    const Style style = style_of(*family);
    Choice choice(*family, wanted, style);
    BATON_TRY(choice.by_size());
    BATON_TRY(choice.by_format());
    BATON_TRY_ASSIGN(const std::string quantization, choice.by_quantization());
    return choice.by_hub(quantization, default_hub);
}

Expected<void> Registry::add(std::string_view model_json, bool persist) {
    BATON_TRY(openai::check_json_object(model_json));
    BATON_TRY_ASSIGN(Family family, Family::parse(Json::parse(model_json), false));
    const std::string name = family.name();
    if (find(name) != nullptr) return fail(ErrorCode::kInvalidArgument, "Model " + name + " already registered", "model_name");
    BATON_TRY(check_style(family.style()));
    if (families_.size() >= kRegisteredMax) return fail(ErrorCode::kInvalidArgument, "too many models are registered", "model_name");
    family.set_persists(persist);
    families_[name] = std::make_unique<Family>(std::move(family));
    if (!persist) return {};
    auto saved = save();
    if (!saved) families_.erase(name);
    return saved;
}

Expected<void> Registry::remove(std::string_view name) {
    const Family* family = find(name);
    if (family == nullptr) return not_found(name);
    if (family->built_in()) return fail(ErrorCode::kInvalidArgument, "Model " + family->name() + " is built in and cannot be unregistered", "model_name");
    const bool persists = family->persists();
    families_.erase(std::string(name));
    return persists ? save() : Expected<void>{};
}

// ---- state file -------------------------------------------------------------------------------------------------------

void Registry::load() {
    std::ifstream in(state_file_);
    if (!in) return;
    std::stringstream buffer;
    buffer << in.rdbuf();
    const std::string all = buffer.str();
    Json state;
    if (openai::check_json_object(all)) state = Json::parse(all, nullptr, false);
    const auto models = state.is_object() ? state.find("models") : state.end();
    if (!state.is_object() || models == state.end() || !models->is_array()) {
        const std::string aside = state_file_ + ".unreadable";
        std::rename(state_file_.c_str(), aside.c_str());
        log::error("registry.unreadable", {{"path", state_file_}, {"kept_as", aside}});
        return;
    }
    for (const Json& item : *models) {
        auto family = Family::parse(item, false);
        if (!family || find(family->name()) != nullptr) {
            log::warn("registry.model_ignored", {{"reason", family ? "a model of that name is built in" : family.error().message}});
            continue;
        }
        family->set_persists(true);
        const std::string name = family->name();
        families_[name] = std::make_unique<Family>(std::move(*family));
    }
}

Expected<void> Registry::save() const {
    if (state_file_.empty()) return {};
    Json state = {{"version", 1}, {"models", Json::array()}};
    for (const auto& [name, family] : families_)
        if (family->persists()) state["models"].push_back(family->given());
    const std::string all = state.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    const std::string other = state_file_ + ".new";
    const UniqueFd fd(::open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const bool written = fd && ::write(fd.get(), all.data(), all.size()) == static_cast<ssize_t>(all.size()) && ::fsync(fd.get()) == 0;
    if (written && std::rename(other.c_str(), state_file_.c_str()) == 0) return {};
    return fail(ErrorCode::kIo, "cannot write " + state_file_ + ": " + std::strerror(errno));
}

// ---- the API's answers ------------------------------------------------------------------------------------------------

std::string Registry::list_json(bool detailed, const IsCached& is_cached) const {
    std::vector<const Family*> all;
    for (const auto& [name, family] : families_) all.push_back(family.get());
    std::sort(all.begin(), all.end(), [](const Family* a, const Family* b) { return std::pair(lower(a->name()), a->name()) < std::pair(lower(b->name()), b->name()); });
    Json out = Json::array();
    for (const Family* f : all) out.push_back(shown(*f, detailed, is_cached));
    return dump(out);
}

Expected<std::string> Registry::family_json(std::string_view name, const IsCached& is_cached) const {
    const Family* family = find(name);
    if (family == nullptr) return not_found(name);
    return dump(shown(*family, true, is_cached));
}

Expected<std::string> Registry::engines_json(std::string_view name) const {
    const Family* family = find(name);
    if (family == nullptr) return not_found(name);
    Json all = Json::array(), safetensors = Json::array(), gguf = Json::array();
    for (const Spec& s : family->specs()) {
        const Json row = {{"model_name", family->name()}, {"model_format", s.format}, {"model_size_in_billions", size_json(s.size)}, {"quantizations", s.quantizations}};
        all.push_back(row);
        (s.format == "ggufv2" ? gguf : safetensors).push_back(row);
    }
    // One engine serves them all; each name lists the formats that its users expect of it.
    Json out = Json::object();
    if (!safetensors.empty()) out["Transformers"] = safetensors;
    out["vLLM"] = all;
    if (!safetensors.empty()) out["SGLang"] = safetensors;
    if (!gguf.empty()) out["llama.cpp"] = gguf;
    out["baton"] = all;
    return dump(out);
}

std::string Registry::families_json() const {
    Json out = Json::object();
    for (const char* ability : {"chat", "generate", "tools", "vision", "reasoning", "audio", "omni", "hybrid"}) {
        out[ability] = Json::array();
        for (const auto& [name, family] : families_)
            if (family->can(ability)) out[ability].push_back(name);
    }
    return dump(out);
}

std::string Registry::vllm_supported_json() const {
    Json out = {{"chat", Json::array()}, {"generate", Json::array()}};
    for (const auto& [name, family] : families_) out[family->can("chat") ? "chat" : "generate"].push_back(name);
    return dump(out);
}

std::string Registry::cached_row_json(const std::string& hub, const std::string& repo, const std::string& file) const {
    const auto part = parse_split_name(file);  // a registry names a GGUF as if it were one file
    const std::string whole = part ? part->stem + ".gguf" : file;
    for (const auto& [name, family] : families_)
        for (const Spec& s : family->specs())
            for (const Source& source : s.sources) {
                if (source.hub != hub || source.repo != repo) continue;
                for (const std::string& q : source.quantizations)
                    if (s.format != "ggufv2" || equal_nocase(file_name(source, q), whole))
                        return dump({{"model_name", name}, {"model_format", s.format}, {"model_size_in_billions", size_json(s.size)}, {"quantization", q}});
            }
    const bool gguf = lower(file).ends_with(".gguf");
    return dump({{"model_name", repo}, {"model_format", gguf ? "ggufv2" : "pytorch"}, {"model_size_in_billions", nullptr}, {"quantization", gguf ? Json(nullptr) : Json("none")}});
}

}  // namespace baton::registry
