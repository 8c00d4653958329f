#include "text/jinja_value.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "baton/base/utf8.hpp"

namespace baton::text::jinja {
namespace {

constexpr size_t kIndexFrom = 8;

uint32_t deepest(const std::vector<Value>& values) {
    uint32_t depth = 0;
    for (const Value& value : values) depth = std::max(depth, value.depth());
    return depth;
}

}  // namespace

StrObject::StrObject(Budget* b, std::string t, std::vector<TaintRange> ranges, bool is_markup)
    : Object(b, sizeof(StrObject) + t.size() + ranges.size() * sizeof(TaintRange)),
      text(std::move(t)),
      taint(std::move(ranges)),
      chars(count_utf8(text)),
      markup(is_markup) {}

SeqObject::SeqObject(Budget* b, std::vector<Value> values)
    : Object(b, sizeof(SeqObject) + values.size() * sizeof(Value)), items(std::move(values)) {
    depth = deepest(items) + 1;
}

DictObject::DictObject(Budget* b, std::vector<std::pair<Value, Value>> entries)
    : Object(b, sizeof(DictObject) +
                    entries.size() * sizeof(Value) * (entries.size() > kIndexFrom ? 6 : 2)) {
    // A repeated key keeps its place and takes the last value.
    std::string key;
    for (auto& entry : entries) {
        depth = std::max(depth, std::max(entry.first.depth(), entry.second.depth()) + 1);
        if (entries.size() <= kIndexFrom) {
            if (const Value* old = find(entry.first)) {
                *const_cast<Value*>(old) = std::move(entry.second);
                continue;
            }
        } else {
            key.clear();
            (void)dict_key(entry.first, key);
            const auto [it, fresh] = index.try_emplace(key, items.size());
            if (!fresh) {
                items[it->second].second = std::move(entry.second);
                continue;
            }
        }
        items.push_back(std::move(entry));
    }
}

const Value* DictObject::find(const Value& key) const {
    if (key.is_str()) return find(key.text());
    std::string wanted;
    if (!dict_key(key, wanted)) return nullptr;
    if (!index.empty()) {
        const auto it = index.find(wanted);
        return it == index.end() ? nullptr : &items[it->second].second;
    }
    std::string other;
    for (const auto& [name, value] : items) {
        other.clear();
        if (!name.is_str() && dict_key(name, other) && other == wanted) return &value;
    }
    return nullptr;
}

const Value* DictObject::find(std::string_view key) const {
    if (!index.empty()) {
        const auto it = index.find("s" + std::string(key));
        return it == index.end() ? nullptr : &items[it->second].second;
    }
    for (const auto& [name, value] : items) {
        if (name.is_str() && name.text() == key) return &value;
    }
    return nullptr;
}

int64_t RangeObject::size() const {
    if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
    return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool dict_key(const Value& value, std::string& out) {
    switch (value.kind) {
        case Kind::kStr:
            out += 's';
            out += value.text();
            return true;
        case Kind::kNone:
            out += 'N';
            return true;
        case Kind::kBool:
        case Kind::kInt:
            out += 'i' + std::to_string(value.as_int());
            return true;
        case Kind::kBigInt:
            out += 'i' + value.get<BigIntObject>().digits;
            return true;
        case Kind::kFloat:
            if (value.real == std::floor(value.real) && std::fabs(value.real) < 9e18) {
                out += 'i' + std::to_string(static_cast<int64_t>(value.real));
            } else {
                uint64_t bits = 0;
                std::memcpy(&bits, &value.real, sizeof(bits));
                out += 'f' + std::to_string(bits);
            }
            return true;
        case Kind::kTuple:
            out += 't';
            for (const Value& item : value.get<SeqObject>().items) {
                std::string part;
                if (!dict_key(item, part)) return false;
                out += std::to_string(part.size()) + ':' + part;
            }
            return true;
        case Kind::kMissing:
        case Kind::kList:
        case Kind::kDict:
        case Kind::kDictKeys:
        case Kind::kDictItems:
            return false;
        default:
            out += 'o' + std::to_string(reinterpret_cast<uintptr_t>(value.object.get()));
            return true;
    }
}

}  // namespace baton::text::jinja
