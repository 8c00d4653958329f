#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

/// Models by name: the families built in (src/registry/families.json) and those that users register, in Xinference's JSON
/// form (docs/MODELS.md).
namespace baton::registry {

/// What a launch or a pull asks for; "" where it names nothing.
struct Wanted {
    std::string name;          ///< of a family, or org/name of a repository
    std::string size;          ///< "0_5", "0.5", "7", "7B"
    std::string format;        ///< pytorch, ggufv2
    std::string quantization;
    std::string hub;           ///< huggingface, modelscope
};

/// How a family is talked to, where its registration says so; "" and empty: as the model's files say.
struct Style {
    std::string chat_template;            ///< its text
    std::vector<std::string> stop;        ///< of chats that give none
    std::vector<int32_t> stop_token_ids;
    std::string reasoning_start, reasoning_end;  ///< tags around what a model thinks; both or none
    std::string tool_parser;              ///< name of the format of its tool calls
    std::string reasoning_parser;         ///< a launch's alone; "none": thoughts are not told apart
};

/// Where the model is.
struct Resolved {
    std::string path;          ///< of a registered model with files of its own; else "" and
    std::string hub, repo, revision;
    std::string format, quantization;
    std::string gguf_file;     ///< its name in the repository, where the registry knows it
    std::string size;          ///< in the registry's spelling
    std::vector<std::string> abilities, languages;
    std::string description;
    Style style;
    bool direct = false;       ///< a repository's id, not a family
};

/// Abilities, languages and so on of a family, as the API shows them.
class Family;

/// Not safe for threads: the owner's alone. Built-in families are always there.
class Registry {
  public:
    /// `state_file`: where registrations that persist are kept; "" keeps none. What cannot be read there is logged, and the
    /// file kept beside the new one.
    explicit Registry(std::string state_file = {});
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    /// kInvalidArgument (param model_name, model_size_in_billions, model_format, quantization or download_hub) with what is
    /// allowed. `default_hub` is taken where neither the request nor the family says another.
    [[nodiscard]] Expected<Resolved> resolve(const Wanted& wanted, std::string_view default_hub = "huggingface") const;

    /// Registers a model; `model_json` is the text of its family object. kInvalidArgument: `Model X already registered`, or
    /// what is wrong with which field. kIo when it cannot be kept.
    [[nodiscard]] Expected<void> add(std::string_view model_json, bool persist);
    /// kInvalidArgument `Model X not found`, and for families that are built in.
    [[nodiscard]] Expected<void> remove(std::string_view name);
    [[nodiscard]] bool knows(std::string_view name) const { return find(name) != nullptr; }

    /// Whether the files of this choice lie in a cache here; null: nobody knows.
    using IsCached = std::function<bool(const std::string& hub, const std::string& repo, const std::string& format, const std::string& quantization)>;
    /// Bodies of the API's answers (reference: registrations and engines), as JSON text.
    [[nodiscard]] std::string list_json(bool detailed, const IsCached& is_cached = {}) const;
    [[nodiscard]] Expected<std::string> family_json(std::string_view name, const IsCached& is_cached = {}) const;  ///< `Model X not found`
    [[nodiscard]] Expected<std::string> engines_json(std::string_view name) const;  ///< `Model X not found`
    /// {"chat": [names], "generate": [names], …} by ability.
    [[nodiscard]] std::string families_json() const;
    /// {"chat": [names], "generate": [names]}.
    [[nodiscard]] std::string vllm_supported_json() const;
    /// The family, format, size and quantization that a repository's file belongs to, as a row of the cache list:
    /// {model_name, model_format, model_size_in_billions, quantization}; the repository's own id where no family has it.
    [[nodiscard]] std::string cached_row_json(const std::string& hub, const std::string& repo, const std::string& file) const;

  private:
    [[nodiscard]] const Family* find(std::string_view name) const;
    [[nodiscard]] std::string known_names() const;
    [[nodiscard]] Style style_of(const Family& family) const;
    [[nodiscard]] Expected<void> check_style(const Style& style) const;
    void load();
    [[nodiscard]] Expected<void> save() const;

    std::string state_file_;
    std::map<std::string, std::unique_ptr<Family>> families_;  ///< by name
};

/// "0.5", "0_5", 0.5 as text, "7.0", "7B" → "0_5", "0_5", "0_5", "7", "7".
[[nodiscard]] std::string normalised_size(std::string_view size);

}  // namespace baton::registry
