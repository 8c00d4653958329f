#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/registry/registry.hpp"

namespace baton::registry {

using Json = nlohmann::ordered_json;

/// A repository that holds one size of a family in one format.
struct Source {
    std::string hub, repo, revision;
    std::vector<std::string> quantizations;
    std::string file_template;  ///< of a GGUF's name, with {quantization}
};
struct Spec {
    std::string format;
    std::string size;  ///< "0_5"
    std::string path;  ///< of files outside of any hub; "" none
    std::vector<Source> sources;
    std::vector<std::string> quantizations;  ///< of all sources
};

/// A model family as it was given, and what baton reads of it.
class Family {
  public:
    /// Checks a family object in Xinference's form: one `model_src` a spec with several hubs, or `model_id`, `model_hub`,
    /// `model_uri` and `quantization(s)` in the spec itself. kInvalidArgument names the field.
    [[nodiscard]] static Expected<Family> parse(const Json& given, bool built_in);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] bool built_in() const { return built_in_; }
    [[nodiscard]] bool persists() const { return persists_; }
    void set_persists(bool persists) { persists_ = persists; }
    [[nodiscard]] const std::vector<Spec>& specs() const { return specs_; }
    [[nodiscard]] const std::vector<std::string>& abilities() const { return abilities_; }
    [[nodiscard]] const std::vector<std::string>& languages() const { return languages_; }
    [[nodiscard]] const std::string& description() const { return description_; }
    /// As given: the chat template may be the name of another family.
    [[nodiscard]] const Style& style() const { return style_; }
    [[nodiscard]] bool can(std::string_view ability) const;
    [[nodiscard]] const Json& given() const { return given_; }

  private:
    Family() = default;

    Json given_;
    std::string name_, description_;
    bool built_in_ = false, persists_ = false;
    std::vector<std::string> abilities_, languages_;
    std::vector<Spec> specs_;
    Style style_;
};

/// A JSON size (0.5, 7, "0_5") in the API's way of writing: a whole number, or text with an underscore.
[[nodiscard]] Json size_json(const std::string& size);
/// `text` is `other` without regard to case (ASCII).
[[nodiscard]] bool equal_nocase(std::string_view text, std::string_view other);

}  // namespace baton::registry
