// Global functions.
#include <array>
#include <ctime>

#include "text/jinja_strings.hpp"
#include "text/jinja_vm.hpp"

namespace baton::text::jinja {
namespace {

constexpr int64_t kRangeValueMax = int64_t{1} << 40;
constexpr size_t kDateFormatMax = 256;

Value fn_range(Vm& vm, const Value&, Args& args) {
    if (!args.named.empty() || args.positional.empty() || args.positional.size() > 3) {
        return vm.error("range expected 1 to 3 arguments");
    }
    std::array<int64_t, 3> given{};
    for (size_t i = 0; i < args.positional.size(); ++i) {
        const Value& value = args.positional[i];
        if (!value.is_int())
            return value.is_undefined() ? vm.use_undefined(value)
                                        : vm.error("range takes integers");
        given[i] = value.as_int();
        if (given[i] > kRangeValueMax || given[i] < -kRangeValueMax)
            return vm.error("range too big");
    }
    const bool one = args.positional.size() == 1;
    const int64_t step = args.positional.size() == 3 ? given[2] : 1;
    if (step == 0) return vm.error("range() arg 3 must not be zero");
    if (!vm.room(sizeof(RangeObject))) return {};
    auto range = std::make_shared<RangeObject>(&vm.budget(), one ? 0 : given[0],
                                               one ? given[0] : given[1], step);
    if (range->size() > static_cast<int64_t>(limits::kTemplateRangeMax)) {
        return vm.error("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                        std::to_string(limits::kTemplateRangeMax) + ").");
    }
    return Value::of_object(Kind::kRange, std::move(range));
}

/// The pairs dict() and namespace() are made of.
bool pairs_of(Vm& vm, Args& args, std::vector<std::pair<Value, Value>>& out) {
    if (args.positional.size() > 1) {
        vm.error("dict expected at most 1 argument");
        return false;
    }
    if (!args.positional.empty() && args.positional[0].is(Kind::kDict)) {
        out = args.positional[0].get<DictObject>().items;
    } else if (!args.positional.empty()) {
        const auto items = vm.iterate(args.positional[0]);
        if (items == nullptr) return false;
        for (const Value& item : items->items) {
            const auto pair = vm.iterate(item);
            if (pair == nullptr) return false;
            std::string key;
            if (pair->items.size() != 2 || !dict_key(pair->items[0], key)) {
                vm.error("dictionary update sequence element is not a pair");
                return false;
            }
            out.emplace_back(pair->items[0], pair->items[1]);
        }
    }
    for (auto& [name, value] : args.named) out.emplace_back(vm.make_str(name), std::move(value));
    return !vm.failed();
}

Value fn_dict(Vm& vm, const Value&, Args& args) {
    std::vector<std::pair<Value, Value>> items;
    return pairs_of(vm, args, items) ? vm.make_dict(std::move(items)) : Value();
}

Value fn_namespace(Vm& vm, const Value&, Args& args) {
    std::vector<std::pair<Value, Value>> items;
    if (!pairs_of(vm, args, items)) return {};
    const Value unique = vm.make_dict(std::move(items));
    if (vm.failed()) return {};
    std::vector<std::pair<std::string, Value>> attrs;
    for (const auto& [key, value] : unique.get<DictObject>().items) {
        if (!key.is_str()) return vm.error("namespace keys must be strings");
        attrs.emplace_back(key.text(), value);
    }
    return vm.make_namespace(std::move(attrs));
}

Value fn_cycler(Vm& vm, const Value&, Args& args) {
    if (args.positional.empty() || !args.named.empty())
        return vm.error("at least one item has to be provided");
    auto made = std::make_shared<CyclerObject>(&vm.budget(), std::move(args.positional));
    if (made->depth > limits::kTemplateDepthMax) return vm.error("a cycler is nested too deeply");
    return Value::of_object(Kind::kCycler, std::move(made));
}

Value fn_joiner(Vm& vm, const Value&, Args& args) {
    auto a = vm.bind("joiner", args, {"sep"});
    if (a[0].is_missing()) a[0] = vm.make_str(", ");
    if (vm.failed()) return {};
    auto made = std::make_shared<CyclerObject>(&vm.budget(), std::move(a));
    if (made->depth > limits::kTemplateDepthMax) return vm.error("a joiner is nested too deeply");
    return Value::of_object(Kind::kJoiner, std::move(made));
}

Value fn_raise(Vm& vm, const Value&, Args& args) {
    const auto a = vm.bind("raise_exception", args, {"message"}, 1);
    if (vm.failed()) return {};
    const Value text = vm.to_str(a[0]);
    return vm.failed() ? Value() : vm.raise(std::string(text.text()));
}

Value fn_strftime(Vm& vm, const Value&, Args& args) {
    const auto a = vm.bind("strftime_now", args, {"format"}, 1);
    if (vm.failed()) return {};
    if (!a[0].is_str() || a[0].text().size() > kDateFormatMax)
        return vm.error("strftime_now takes a short format string");
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    // A trailing mark tells an empty result from one that did not fit.
    const std::string format = std::string(a[0].text()) + "|";
    std::array<char, 4096> buffer{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t length = std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
#pragma GCC diagnostic pop
    if (length == 0) return vm.error("strftime_now: the date is too long");
    return vm.make_str(std::string_view(buffer.data(), length - 1));
}

Value fn_lipsum(Vm& vm, const Value&, Args&) {
    return vm.error("lipsum is not supported");
}

}  // namespace

Builtin find_function(std::string_view name) {
    if (name == "range") return fn_range;
    if (name == "namespace") return fn_namespace;
    if (name == "dict") return fn_dict;
    if (name == "raise_exception") return fn_raise;
    if (name == "strftime_now") return fn_strftime;
    if (name == "cycler") return fn_cycler;
    if (name == "joiner") return fn_joiner;
    if (name == "lipsum") return fn_lipsum;
    return nullptr;
}

}  // namespace baton::text::jinja
