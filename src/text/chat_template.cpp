#include "baton/text/chat_template.hpp"

#include <charconv>
#include <cmath>
#include <unordered_map>

#include "baton/base/limits.hpp"
#include "text/jinja_parser.hpp"
#include "text/jinja_vm.hpp"
#include "text/json.hpp"

namespace baton::text {
namespace {

using jinja::Kind;
using jinja::Value;

/// Builds the template's variables from the context. Every string is marked as the user's, but
/// those of the model's own special tokens (bos_token and the like) at the top level.
class ContextBuilder final : public JsonHandler {
  public:
    explicit ContextBuilder(jinja::Vm& vm) : vm_(vm) {}

    bool on_null() override { return add(Value::none()); }
    bool on_bool(bool value) override { return add(Value::of_bool(value)); }
    bool on_number(std::string_view source) override {
        const char* end = source.data() + source.size();
        if (source.find_first_of(".eE") == std::string_view::npos) {
            int64_t value = 0;
            const auto parsed = std::from_chars(source.data(), end, value);
            if (parsed.ec == std::errc()) return add(Value::of_int(value));
            if (source.size() > 4300) return false;
            if (!vm_.room(source.size())) return false;
            return add(Value::of_object(Kind::kBigInt, std::make_shared<jinja::BigIntObject>(
                                                           &vm_.budget(), std::string(source))));
        }
        double value = 0;
        const auto parsed = std::from_chars(source.data(), end, value);
        if (parsed.ec == std::errc::result_out_of_range) {
            // Python reads 1e999 as infinity and 1e-999 as zero.
            value = source.find('-', 1) != std::string_view::npos ? 0.0 : HUGE_VAL;
            if (source.front() == '-') value = -value;
        }
        return add(Value::of_float(value));
    }
    bool on_string(std::string&& value) override {
        const bool own = open_.size() == 1 && std::string_view(key_).ends_with("_token");
        return add(vm_.make_str(value, !own));
    }
    bool on_key(std::string&& key) override {
        if (open_.size() > 1) {
            open_.back().key = vm_.make_str(key, true);
        } else {
            key_ = std::move(key);
        }
        return !vm_.failed();
    }
    bool begin_array() override { return open(false); }
    bool begin_object() override { return open(true); }
    bool end_array() override { return close(); }
    bool end_object() override { return close(); }

    [[nodiscard]] bool is_object() const { return is_object_; }
    std::vector<std::pair<std::string, Value>>& variables() { return variables_; }

  private:
    struct Open {
        bool object = false;
        Value key;
        std::vector<Value> items;
        std::vector<std::pair<Value, Value>> members;
    };

    bool open(bool object) {
        if (open_.empty()) is_object_ = object;
        open_.emplace_back();
        open_.back().object = object;
        return true;
    }
    bool close() {
        Open done = std::move(open_.back());
        open_.pop_back();
        if (open_.empty()) return true;
        return add(done.object ? vm_.make_dict(std::move(done.members))
                               : vm_.make_list(std::move(done.items)));
    }
    bool add(Value value) {
        if (vm_.failed()) return false;
        if (open_.empty()) return true;  // not an object; refused afterwards
        Open& top = open_.back();
        if (open_.size() == 1) {
            variables_.emplace_back(key_, std::move(value));
            return variables_.size() <= limits::kMessagesMax;
        }
        if (!top.object) return vm_.push(top.items, std::move(value));
        if (!vm_.room(sizeof(Value) * 4)) return false;
        top.members.emplace_back(std::move(top.key), std::move(value));
        return true;
    }

    jinja::Vm& vm_;
    bool is_object_ = false;
    std::string key_;
    std::vector<Open> open_;
    std::vector<std::pair<std::string, Value>> variables_;
};

std::vector<Segment> to_segments(const jinja::StrBuilder& out) {
    std::vector<Segment> segments;
    const std::string_view text = out.text();
    size_t pos = 0;
    const auto add = [&](size_t end, bool from_user) {
        if (end > pos) segments.push_back({std::string(text.substr(pos, end - pos)), from_user});
        pos = end;
    };
    for (const jinja::TaintRange& range : out.taint()) {
        add(range.begin, false);
        add(range.end, true);
    }
    add(text.size(), false);
    return segments;
}

class JinjaTemplate final : public ChatTemplate {
  public:
    explicit JinjaTemplate(jinja::Program program) : program_(std::move(program)) {
        for (size_t i = 0; i < program_.names.size(); ++i) {
            ids_.emplace(program_.names[i], static_cast<jinja::NameId>(i));
        }
    }

    Expected<std::vector<Segment>> render(std::string_view context_json) const override {
        jinja::Vm vm(program_);
        const auto scope = std::make_shared<jinja::Scope>();
        ContextBuilder context(vm);
        const Expected<void> parsed = parse_json(context_json, limits::kJsonDepthMax, context);
        if (vm.failed()) return fail(ErrorCode::kInvalidArgument, "chat template: " + vm.error());
        if (!parsed)
            return fail(ErrorCode::kInvalidArgument,
                        "chat template context: " + parsed.error().message);
        if (!context.is_object())
            return fail(ErrorCode::kInvalidArgument, "chat template context is not an object");
        for (auto& [name, value] : context.variables()) {
            const auto it = ids_.find(name);
            if (it != ids_.end()) scope->set(it->second, std::move(value));
        }
        jinja::StrBuilder out(vm);
        vm.run(scope, out);
        if (vm.failed()) {
            if (vm.raised()) return fail(ErrorCode::kInvalidArgument, vm.error());
            return fail(
                ErrorCode::kInvalidArgument,
                "chat template, line " + std::to_string(vm.error_line()) + ": " + vm.error());
        }
        return to_segments(out);
    }

  private:
    jinja::Program program_;
    std::unordered_map<std::string_view, jinja::NameId> ids_;  // views into program_
};

}  // namespace

Expected<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(std::string_view source) {
    BATON_TRY_ASSIGN(jinja::Program program, jinja::parse(source));
    return std::make_shared<JinjaTemplate>(std::move(program));
}

}  // namespace baton::text
