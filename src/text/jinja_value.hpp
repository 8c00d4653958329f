#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::text::jinja {

/// Bytes held by the live objects of one rendering. Objects give back what they took.
struct Budget {
    size_t live = 0;
    size_t live_max = 0;
    [[nodiscard]] bool has_room(size_t bytes) const {
        return bytes <= live_max && live <= live_max - bytes;
    }
};

/// Everything a value can be; named after the Python type it stands for.
enum class Kind : uint8_t {
    kMissing,    ///< no argument given; never seen by a template
    kUndefined,  ///< jinja2's Undefined
    kNone,
    kBool,
    kInt,
    kFloat,
    kBigInt,  ///< an integer literal outside int64; prints exactly, does not calculate
    kStr,
    kList,
    kTuple,
    kDict,
    kRange,
    kGenerator,  ///< an iterator: reading consumes it
    kDictKeys,
    kDictValues,
    kDictItems,
    kNamespace,
    kMacro,
    kMethod,    ///< a method bound to its object
    kFunction,  ///< a global function
    kLoop,
    kCycler,
    kJoiner,
};

/// A heap object. Immutable once shared but for namespaces, iterators and loop state, which one
/// rendering owns.
struct Object {
    Object(Budget* b, size_t bytes) : budget(b), charged(bytes) {
        if (budget != nullptr) budget->live += charged;
    }
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object() {
        if (budget != nullptr) budget->live -= charged;
    }
    Budget* budget;
    size_t charged;
    uint32_t depth =
        1;  ///< nesting below and including this, so that destruction and printing stay shallow
};

struct StrObject;
struct SeqObject;
struct DictObject;

/// One value: small ones inside, others shared.
struct Value {
    Kind kind = Kind::kUndefined;
    union {
        bool boolean;
        int64_t integer = 0;
        double real;
    };
    std::shared_ptr<const Object> object;

    static Value missing() {
        Value v;
        v.kind = Kind::kMissing;
        return v;
    }
    static Value none() {
        Value v;
        v.kind = Kind::kNone;
        return v;
    }
    static Value of_bool(bool b) {
        Value v;
        v.kind = Kind::kBool;
        v.integer = 0;
        v.boolean = b;
        return v;
    }
    static Value of_int(int64_t i) {
        Value v;
        v.kind = Kind::kInt;
        v.integer = i;
        return v;
    }
    static Value of_float(double d) {
        Value v;
        v.kind = Kind::kFloat;
        v.real = d;
        return v;
    }
    static Value of_object(Kind kind, std::shared_ptr<const Object> object) {
        Value v;
        v.kind = kind;
        v.object = std::move(object);
        return v;
    }

    [[nodiscard]] bool is(Kind k) const { return kind == k; }
    [[nodiscard]] bool is_missing() const { return kind == Kind::kMissing; }
    [[nodiscard]] bool is_undefined() const { return kind == Kind::kUndefined; }
    [[nodiscard]] bool is_str() const { return kind == Kind::kStr; }
    /// True for int and bool, as in Python.
    [[nodiscard]] bool is_int() const { return kind == Kind::kInt || kind == Kind::kBool; }
    [[nodiscard]] bool is_number() const { return is_int() || kind == Kind::kFloat; }
    /// True for the kinds whose object is a SeqObject.
    [[nodiscard]] bool is_seq() const {
        return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kGenerator ||
               kind == Kind::kDictKeys || kind == Kind::kDictValues || kind == Kind::kDictItems;
    }
    [[nodiscard]] int64_t as_int() const {
        return kind == Kind::kBool ? (boolean ? 1 : 0) : integer;
    }
    [[nodiscard]] double as_float() const {
        return kind == Kind::kFloat ? real : static_cast<double>(as_int());
    }
    [[nodiscard]] uint32_t depth() const { return object == nullptr ? 0 : object->depth; }

    template <class T>
    [[nodiscard]] const T& get() const {
        return static_cast<const T&>(*object);
    }
    [[nodiscard]] inline const StrObject& str() const;
    [[nodiscard]] inline std::string_view text() const;
};

/// Bytes that came from a user.
struct TaintRange {
    uint32_t begin = 0;
    uint32_t end = 0;
};

/// A string: valid UTF-8 with the ranges of user text in order.
struct StrObject final : Object {
    StrObject(Budget* b, std::string t, std::vector<TaintRange> ranges, bool is_markup);
    std::string text;
    std::vector<TaintRange> taint;
    size_t chars = 0;  ///< code points
    bool markup = false;
    [[nodiscard]] bool ascii() const { return chars == text.size(); }
};

/// List, tuple, iterator or dict view.
struct SeqObject final : Object {
    SeqObject(Budget* b, std::vector<Value> values);
    std::vector<Value> items;
    mutable size_t next = 0;  ///< iterators: the first item not yet read
    bool group = false;       ///< a groupby tuple, with .grouper and .list
};

/// An ordered dictionary. Keys are found by their canonical form (see dict_key).
struct DictObject final : Object {
    DictObject(Budget* b, std::vector<std::pair<Value, Value>> entries);
    std::vector<std::pair<Value, Value>> items;
    std::map<std::string, size_t, std::less<>> index;  ///< only where there are many items
    [[nodiscard]] const Value* find(const Value& key) const;
    [[nodiscard]] const Value* find(std::string_view key) const;
};

struct RangeObject final : Object {
    RangeObject(Budget* b, int64_t first, int64_t last, int64_t by)
        : Object(b, sizeof(RangeObject)), start(first), stop(last), step(by) {}
    int64_t start;
    int64_t stop;
    int64_t step;
    [[nodiscard]] int64_t size() const;
};

/// Why a value is undefined; using it is an error with this text.
struct UndefinedObject final : Object {
    UndefinedObject(Budget* b, std::string text)
        : Object(b, sizeof(UndefinedObject) + text.size()), why(std::move(text)) {}
    std::string why;
};

struct BigIntObject final : Object {
    BigIntObject(Budget* b, std::string text)
        : Object(b, sizeof(BigIntObject) + text.size()), digits(std::move(text)) {}
    std::string digits;
};

/// Canonical form of a hashable value, equal exactly where Python's == is; false where it is not
/// hashable.
[[nodiscard]] bool dict_key(const Value& value, std::string& out);

inline const StrObject& Value::str() const {
    return get<StrObject>();
}
inline std::string_view Value::text() const {
    return get<StrObject>().text;
}

}  // namespace baton::text::jinja
