#include "openai/json.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "baton/base/limits.hpp"
#include "baton/base/utf8.hpp"
#include "baton/openai/json.hpp"
#include "openai/json_reader.hpp"
#include "openai/json_text.hpp"

namespace baton::openai {
namespace {

constexpr size_t kNodesMax =
    (1u << 20) + 65'536;  ///< the longest prompt of token ids, and room for the rest

/// Builds a document from the library's events, with our bounds checked on the way. Objects are
/// filled without a look for each key (the library's ordered map would search all earlier ones:
/// quadratic for a hostile body); one sort at each object's end finds duplicates instead.
class Builder {
  public:
    using number_integer_t = Json::number_integer_t;
    using number_unsigned_t = Json::number_unsigned_t;
    using number_float_t = Json::number_float_t;
    using string_t = Json::string_t;
    using binary_t = Json::binary_t;

    bool null() { return add(nullptr) != nullptr; }
    bool boolean(bool value) { return add(value) != nullptr; }
    bool number_integer(number_integer_t value) { return add(value) != nullptr; }
    bool number_unsigned(number_unsigned_t value) { return add(value) != nullptr; }
    bool number_float(number_float_t value, const string_t&) {
        if (!std::isfinite(value)) return stop("a number is out of range");
        return add(value) != nullptr;
    }
    bool string(string_t& value) { return add(std::move(value)) != nullptr; }
    bool binary(binary_t&) { return stop("binary values are not JSON"); }
    bool start_object(size_t) { return open(Json::object()); }
    bool start_array(size_t) { return open(Json::array()); }
    bool key(string_t& name) {
        key_ = std::move(name);
        return true;
    }
    bool end_array() {
        stack_.pop_back();
        return true;
    }
    bool end_object() {
        const Json& object = *stack_.back();
        stack_.pop_back();
        std::vector<std::string_view> names;
        names.reserve(object.size());
        for (const auto& member : object.get_ref<const Json::object_t&>())
            names.emplace_back(member.first);
        std::sort(names.begin(), names.end());
        if (std::adjacent_find(names.begin(), names.end()) != names.end())
            return stop("an object has the same key twice");
        return true;
    }
    bool parse_error(size_t position, const std::string&,
                     const nlohmann::detail::exception& error) {
        position_ = position;
        // id 406: a number that no double holds.
        return stop(error.id == 406 ? "a number is out of range" : "the text is not valid JSON");
    }

    Json root;
    [[nodiscard]] std::string fault() const {
        return position_ == 0
                   ? fault_
                   : std::string(fault_) + " (near byte " + std::to_string(position_) + ")";
    }

  private:
    bool stop(const char* fault) {
        fault_ = fault;
        return false;
    }
    Json* add(Json value) {
        if (++nodes_ > kNodesMax) {
            stop("the body has too many values");
            return nullptr;
        }
        if (stack_.empty()) {
            root = std::move(value);
            return &root;
        }
        Json& parent = *stack_.back();
        if (parent.is_array()) {
            auto& items = parent.get_ref<Json::array_t&>();
            items.push_back(std::move(value));
            return &items.back();
        }
        Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
        members.emplace_back(std::move(key_), std::move(value));
        return &members.back().second;
    }
    bool open(Json container) {
        if (stack_.size() >= limits::kJsonDepthMax) return stop("the body is nested too deeply");
        Json* at = add(std::move(container));
        if (at == nullptr) return false;
        stack_.push_back(at);
        return true;
    }

    std::vector<Json*>
        stack_;  ///< each the last child of the one below, so none moves while it is here
    std::string key_;
    size_t nodes_ = 0;
    size_t position_ = 0;
    const char* fault_ = "the text is not valid JSON";
};

/// Appends what the library prints for a string; false where its bytes are no UTF-8, which the
/// library sees to.
bool print_string(std::string& out, std::string_view text) {
    out.push_back('"');
    size_t plain = 0;  // start of the run that needs no change
    for (size_t pos = 0; pos < text.size();) {
        const auto byte = static_cast<uint8_t>(text[pos]);
        if (byte >= 0x80) {
            const size_t length = valid_utf8_length(text, pos);
            if (length == 0) return false;
            pos += length;
            continue;
        }
        if (byte >= 0x20 && byte != '"' && byte != '\\') {
            ++pos;
            continue;
        }
        out.append(text.substr(plain, pos - plain));
        plain = ++pos;
        append_json_escape(out, byte);
    }
    out.append(text.substr(plain)).push_back('"');
    return true;
}

/// Appends what the library prints for a value; false where it has to do it itself.
bool print(std::string& out, const Json& value) {
    bool first = true;
    switch (value.type()) {
        case Json::value_t::object:
            out.push_back('{');
            for (const auto& [name, member] : value.get_ref<const Json::object_t&>()) {
                if (!std::exchange(first, false)) out.push_back(',');
                if (!print_string(out, name)) return false;
                out.push_back(':');
                if (!print(out, member)) return false;
            }
            out.push_back('}');
            return true;
        case Json::value_t::array:
            out.push_back('[');
            for (const Json& item : value) {
                if (!std::exchange(first, false)) out.push_back(',');
                if (!print(out, item)) return false;
            }
            out.push_back(']');
            return true;
        case Json::value_t::string:
            return print_string(out, value.get_ref<const std::string&>());
        case Json::value_t::number_unsigned:
            out.append(std::to_string(value.get<uint64_t>()));
            return true;
        case Json::value_t::number_integer:
            out.append(std::to_string(value.get<int64_t>()));
            return true;
        case Json::value_t::boolean:
            out.append(value.get<bool>() ? "true" : "false");
            return true;
        case Json::value_t::null:
            out.append("null");
            return true;
        case Json::value_t::number_float:
            out.append(value.dump());
            return true;
        default:
            return false;
    }
}

std::string in_words(int64_t low, int64_t high) {
    if (high == INT64_MAX && low == INT64_MIN) return "an integer of 64 bits";
    if (high == INT64_MAX) return "an integer of at least " + std::to_string(low);
    return "an integer within " + std::to_string(low) + ".." + std::to_string(high);
}

}  // namespace

tl::unexpected<Error> bad_field(std::string message, std::string param) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param));
}

Expected<Json> parse_json(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF"))
        return bad_field("the body begins with a byte order mark", "");
    if (Builder right; JsonReader(text, right).run()) return std::move(right.root);
    Builder builder;
    if (!Json::sax_parse(text, &builder, Json::input_format_t::json, true, false)) {
        return bad_field("invalid JSON body: " + builder.fault(), "");
    }
    return std::move(builder.root);
}

Expected<Json> parse_json_object(std::string_view text) {
    BATON_TRY_ASSIGN(Json value, parse_json(text));
    if (!value.is_object()) return bad_field("the body must be a JSON object", "");
    return value;
}

Expected<void> check_json_object(std::string_view body) {
    BATON_TRY(parse_json_object(body));
    return {};
}

const Json* find(const Json& object, std::string_view name) {
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) {
        if (key == name) return value.is_null() ? nullptr : &value;
    }
    return nullptr;
}

std::optional<int64_t> exact_int(const Json& value) {
    if (value.is_number_unsigned()) {
        const auto number = value.get<uint64_t>();
        if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
        return static_cast<int64_t>(number);
    }
    if (value.is_number_integer()) return value.get<int64_t>();
    return std::nullopt;
}

Expected<std::optional<double>> number_field(const Json& object, const char* name,
                                             NumberRange range) {
    const Json* value = find(object, name);
    if (value == nullptr) return std::optional<double>();
    if (value->is_number()) {
        const auto number = value->get<double>();
        if ((range.low_open ? number > range.low : number >= range.low) && number <= range.high)
            return number;
    }
    return bad_field(std::string(name) + " must be " + range.words + ", not " + shown(*value),
                     name);
}

Expected<std::optional<int64_t>> int_field(const Json& object, const char* name, int64_t low,
                                           int64_t high) {
    const Json* value = find(object, name);
    if (value == nullptr) return std::optional<int64_t>();
    const auto number = exact_int(*value);
    if (number && *number >= low && *number <= high) return number;
    return bad_field(
        std::string(name) + " must be " + in_words(low, high) + ", not " + shown(*value), name);
}

Expected<std::optional<bool>> bool_field(const Json& object, const char* name) {
    const Json* value = find(object, name);
    if (value == nullptr) return std::optional<bool>();
    if (value->is_boolean()) return value->get<bool>();
    return bad_field(std::string(name) + " must be true or false, not " + shown(*value), name);
}

Expected<std::optional<std::string>> string_field(const Json& object, const char* name) {
    const Json* value = find(object, name);
    if (value == nullptr) return std::optional<std::string>();
    if (value->is_string()) return value->get<std::string>();
    return bad_field(std::string(name) + " must be a string, not " + shown(*value), name);
}

std::string shown(const Json& value) {
    constexpr size_t kBytesMax = 48;
    if (value.is_array() && value.size() > 8)
        return "an array of " + std::to_string(value.size()) + " items";
    if (value.is_object() && value.size() > 8)
        return "an object of " + std::to_string(value.size()) + " members";
    if (value.is_string() && value.get_ref<const std::string&>().size() > 4 * kBytesMax)
        return "a string of " + std::to_string(value.get_ref<const std::string&>().size()) +
               " bytes";
    const std::string text = dump(value);
    if (text.size() <= kBytesMax) return echo_input(text);
    return echo_input(text.substr(0, character_boundary(text, kBytesMax))) + "…";
}

std::string dump(const Json& value) {
    if (std::string out; print(out, value)) return out;
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton::openai
