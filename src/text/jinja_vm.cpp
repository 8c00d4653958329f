#include "text/jinja_vm.hpp"

#include <algorithm>
#include <ctime>

#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

constexpr size_t kLiveBytesMax = 128 * 1024 * 1024;
constexpr size_t kStrBytesMax = limits::kTemplateOutputBytesMax;
constexpr size_t kClockEvery = 1024;
constexpr uint32_t kValueDepthMax = 256;

/// CPU time of this thread: the work of a template counts, not what else the machine does.
int64_t cpu_ms() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t{t.tv_sec} * 1'000 + t.tv_nsec / 1'000'000;
}

}  // namespace

void Scope::set(NameId name, Value value) {
    for (auto& [id, old] : names) {
        if (id == name) {
            old = std::move(value);
            return;
        }
    }
    names.emplace_back(name, std::move(value));
}

const Value* Scope::find(NameId name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
        for (const auto& [id, value] : scope->names) {
            if (id == name) return &value;
        }
    }
    return nullptr;
}

const Value* NamespaceObject::find(std::string_view name) const {
    for (const auto& [key, value] : attrs) {
        if (key == name) return &value;
    }
    return nullptr;
}

StrBuilder::~StrBuilder() {
    vm_.budget().live -= charged_;
}

bool StrBuilder::room(size_t bytes) {
    if (vm_.failed()) return false;
    if (text_.size() + bytes > kStrBytesMax) {
        vm_.error("a string grows past " + std::to_string(kStrBytesMax >> 20) + " MiB");
        return false;
    }
    if (!vm_.room(bytes)) return false;
    vm_.budget().live += bytes;
    charged_ += bytes;
    return true;
}

void StrBuilder::mark(size_t begin, size_t end) {
    if (begin == end) return;
    if (!taint_.empty() && taint_.back().end == begin) {
        taint_.back().end = static_cast<uint32_t>(end);
        return;
    }
    vm_.budget().live += sizeof(TaintRange);
    charged_ += sizeof(TaintRange);
    taint_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
}

void StrBuilder::add(std::string_view text, bool from_user) {
    if (!room(text.size())) return;
    const size_t begin = text_.size();
    text_.append(text);
    if (from_user) mark(begin, text_.size());
}

void StrBuilder::add_code(uint32_t code, bool from_user) {
    std::string one;
    append_utf8(one, code);
    add(one, from_user);
}

void StrBuilder::add_part(const StrObject& text, size_t begin, size_t end) {
    if (begin >= end || !room(end - begin)) return;
    const size_t base = text_.size();
    text_.append(text.text, begin, end - begin);
    if (text.taint.empty()) return;
    auto it =
        std::lower_bound(text.taint.begin(), text.taint.end(), begin,
                         [](const TaintRange& range, size_t pos) { return range.end <= pos; });
    for (; it != text.taint.end() && it->begin < end; ++it) {
        const size_t from = std::max<size_t>(it->begin, begin);
        const size_t to = std::min<size_t>(it->end, end);
        mark(base + from - begin, base + to - begin);
    }
}

Value StrBuilder::finish(bool markup) {
    vm_.budget().live -= charged_;
    charged_ = 0;
    Value made = Value::of_object(
        Kind::kStr,
        std::make_shared<StrObject>(&vm_.budget(), std::move(text_), std::move(taint_), markup));
    text_.clear();
    taint_.clear();
    return made;
}

Vm::Vm(const Program& program)
    : program_(program), cpu_ms_end_(cpu_ms() + limits::kTemplateTimeMs) {
    budget_.live_max = kLiveBytesMax;
}

Vm::~Vm() {
    // Cut every cycle, and every long chain, before the objects go.
    for (const auto& object : namespaces_) {
        std::vector<std::pair<std::string, Value>> attrs;
        attrs.swap(object->attrs);
    }
    for (const auto& scope : captured_) {
        std::vector<std::pair<NameId, Value>> names;
        names.swap(scope->names);
    }
}

Value Vm::error(std::string what) {
    if (!failed_) {
        failed_ = true;
        error_ = std::move(what);
        error_line_ = line_;
    }
    return {};
}

Value Vm::raise(std::string what) {
    raised_ = !failed_;
    return error(std::move(what));
}

Value Vm::use_undefined(const Value& value) {
    if (value.object == nullptr) return error("value is undefined");
    return error(value.get<UndefinedObject>().why);
}

bool Vm::spend(size_t work) {
    if (failed_) return false;
    work_ += work;
    if (work_ < kClockEvery) return true;
    work_ = 0;
    if (cpu_ms() < cpu_ms_end_) return true;
    error("rendering takes longer than " + std::to_string(limits::kTemplateTimeMs) + " ms");
    return false;
}

bool Vm::room(size_t bytes) {
    if (failed_) return false;
    if (budget_.has_room(bytes)) return true;
    error("rendering needs more than " + std::to_string(kLiveBytesMax >> 20) + " MiB");
    return false;
}

Value Vm::make_str(std::string_view text, bool from_user) {
    if (!room(text.size() + sizeof(StrObject))) return {};
    std::vector<TaintRange> taint;
    if (from_user && !text.empty()) taint.push_back({0, static_cast<uint32_t>(text.size())});
    return Value::of_object(Kind::kStr, std::make_shared<StrObject>(&budget_, std::string(text),
                                                                    std::move(taint), false));
}

Value Vm::make_list(std::vector<Value> items, Kind kind) {
    if (!room(items.size() * sizeof(Value) + sizeof(SeqObject))) return {};
    auto made = std::make_shared<SeqObject>(&budget_, std::move(items));
    if (made->depth > kValueDepthMax) return error("a list is nested too deeply");
    return Value::of_object(kind, std::move(made));
}

Value Vm::make_dict(std::vector<std::pair<Value, Value>> items) {
    if (!room(items.size() * sizeof(Value) * 2 + sizeof(DictObject)) || !spend(items.size()))
        return {};
    auto made = std::make_shared<DictObject>(&budget_, std::move(items));
    if (made->depth > kValueDepthMax) return error("a dict is nested too deeply");
    return Value::of_object(Kind::kDict, std::move(made));
}

Value Vm::make_undefined(std::string why) {
    if (!room(sizeof(UndefinedObject))) return {};
    return Value::of_object(Kind::kUndefined,
                            std::make_shared<UndefinedObject>(&budget_, std::move(why)));
}

Value Vm::make_namespace(std::vector<std::pair<std::string, Value>> attrs) {
    if (!room(sizeof(NamespaceObject))) return {};
    auto made = std::make_shared<NamespaceObject>(&budget_);
    made->attrs = std::move(attrs);
    namespaces_.push_back(made);
    return Value::of_object(Kind::kNamespace, std::move(made));
}

bool Vm::push(std::vector<Value>& items, Value value) {
    if (!spend()) return false;
    // A vector that doubles holds old and new for a moment.
    if (items.size() == items.capacity() && !room(items.size() * 3 * sizeof(Value))) return false;
    items.push_back(std::move(value));
    return true;
}

std::vector<Value> Vm::bind(const char* function, Args& args,
                            std::initializer_list<std::string_view> params, size_t required) {
    std::vector<Value> out(params.size(), Value::missing());
    if (args.positional.size() > params.size()) {
        error(std::string(function) + "() takes at most " + std::to_string(params.size()) +
              " arguments");
        return out;
    }
    std::move(args.positional.begin(), args.positional.end(), out.begin());
    for (auto& [name, value] : args.named) {
        const auto* it = std::find(params.begin(), params.end(), name);
        if (it == params.end() || !out[static_cast<size_t>(it - params.begin())].is_missing()) {
            error(std::string(function) + "() got an unexpected keyword argument '" +
                  name.substr(0, 64) + "'");
            return out;
        }
        out[static_cast<size_t>(it - params.begin())] = std::move(value);
    }
    for (size_t i = 0; i < required; ++i) {
        if (out[i].is_missing()) {
            error(std::string(function) + "() misses the argument '" +
                  std::string(params.begin()[i]) + "'");
        }
    }
    return out;
}

int64_t Vm::int_arg(const Value& value, int64_t fallback, const char* what) {
    if (value.is_missing()) return fallback;
    if (value.is_int()) return value.as_int();
    if (value.is_undefined()) {
        use_undefined(value);
    } else {
        error(std::string(what) + " must be an integer, not " + std::string(type_name(value.kind)));
    }
    return fallback;
}

bool Vm::bool_arg(const Value& value, bool fallback) {
    return value.is_missing() ? fallback : truthy(value);
}

}  // namespace baton::text::jinja
