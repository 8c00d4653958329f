#include <algorithm>
#include <charconv>
#include <set>

#include "text/jinja_filters.hpp"
#include "text/jinja_strings.hpp"

namespace baton::text::jinja {
namespace {

/// "a.b.0" as the steps of make_attrgetter.
std::vector<Value> attribute_path(Vm& vm, const Value& attribute) {
    std::vector<Value> path;
    if (attribute.is_missing() || attribute.is(Kind::kNone)) return path;
    if (!attribute.is_str()) {
        path.push_back(attribute);
        return path;
    }
    std::string_view rest = attribute.text();
    for (;;) {
        const size_t dot = rest.find('.');
        const std::string_view part = rest.substr(0, dot);
        int64_t index = 0;
        const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
        const bool digits = !part.empty() && part[0] != '-' && parsed.ec == std::errc() &&
                            parsed.ptr == part.data() + part.size();
        path.push_back(digits ? Value::of_int(index) : vm.make_str(part));
        if (vm.failed() || dot == std::string_view::npos) return path;
        rest.remove_prefix(dot + 1);
    }
}

Value follow(Vm& vm, Value item, const std::vector<Value>& path,
             const Value& fallback = Value::missing()) {
    for (const Value& step : path) {
        item = vm.get_item(item, step);
        if (vm.failed()) return {};
        if (item.is_undefined() && !fallback.is_missing() && !fallback.is(Kind::kNone))
            item = fallback;
    }
    return item;
}

Value ignore_case(Vm& vm, const Value& value) {
    return value.is_str() ? map_case(vm, value.str(), Case::kLower) : value;
}

/// Sorts positions by their keys, stable; errors where Python cannot order them.
std::vector<size_t> sorted_order(Vm& vm, const std::vector<Value>& keys, bool reverse) {
    std::vector<size_t> order(keys.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (keys.size() < 2) return order;
    // After an error all keys count as equal, which is an order too.
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        if (vm.failed()) return false;
        return reverse ? vm.compare(keys[b], keys[a], "<") == -1
                       : vm.compare(keys[a], keys[b], "<") == -1;
    });
    return order;
}

Value filter_length(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("length", args, {});
    return vm.failed() ? Value() : vm.length(self);
}

Value filter_list(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("list", args, {});
    const auto items = vm.iterate(self);
    return items == nullptr ? Value() : vm.make_list(items->items);
}

Value filter_first(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("first", args, {});
    if (self.is(Kind::kGenerator)) {
        const auto& source = self.get<SeqObject>();
        if (source.next < source.items.size()) return source.items[source.next++];
        return vm.make_undefined("No first item, sequence was empty.");
    }
    const auto items = vm.iterate(self);
    if (items == nullptr) return {};
    return items->items.empty() ? vm.make_undefined("No first item, sequence was empty.")
                                : items->items.front();
}

Value filter_last(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("last", args, {});
    if (self.is(Kind::kGenerator)) return vm.error("'generator' object is not reversible");
    const auto items = vm.iterate(self);
    if (items == nullptr) return {};
    return items->items.empty() ? vm.make_undefined("No last item, sequence was empty.")
                                : items->items.back();
}

Value filter_reverse(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("reverse", args, {});
    if (self.is_str()) return vm.slice(self, Value::none(), Value::none(), Value::of_int(-1));
    const auto items = vm.iterate(self);
    if (items == nullptr) return {};
    std::vector<Value> back(items->items.rbegin(), items->items.rend());
    return vm.make_list(std::move(back),
                        self.is(Kind::kGenerator) ? Kind::kList : Kind::kGenerator);
}

Value filter_join(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("join", args, {"d", "attribute"});
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const Value separator = a[0].is_missing() ? vm.make_str("") : vm.to_str(a[0]);
    const std::vector<Value> path = attribute_path(vm, a[1]);
    if (vm.failed()) return {};
    StrBuilder out(vm);
    for (size_t i = 0; i < items->items.size() && vm.spend(); ++i) {
        if (i > 0) out.add(separator.str());
        vm.append_str(out, follow(vm, items->items[i], path));
    }
    return out.finish();
}

Value filter_items(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("items", args, {});
    if (self.is_undefined()) return vm.make_list({}, Kind::kGenerator);
    if (!self.is(Kind::kDict)) return vm.error("Can only get item pairs from a mapping.");
    std::vector<Value> pairs;
    for (const auto& [key, value] : self.get<DictObject>().items) {
        if (!vm.push(pairs, vm.make_list({key, value}, Kind::kTuple))) return {};
    }
    return vm.make_list(std::move(pairs), Kind::kGenerator);
}

Value filter_dictsort(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("dictsort", args, {"case_sensitive", "by", "reverse"});
    const bool case_sensitive = vm.bool_arg(a[0], false);
    const std::string_view by = a[1].is_str() ? a[1].text() : std::string_view("key");
    if (vm.failed()) return {};
    if (by != "key" && by != "value")
        return vm.error("You can only sort by either \"key\" or \"value\"");
    if (self.is_undefined()) return vm.use_undefined(self);
    if (!self.is(Kind::kDict)) return vm.error("dictsort takes a mapping");
    const auto& items = self.get<DictObject>().items;
    std::vector<Value> keys;
    for (const auto& [key, value] : items) {
        const Value& field = by == "key" ? key : value;
        if (!vm.push(keys, case_sensitive ? field : ignore_case(vm, field))) return {};
    }
    std::vector<Value> pairs;
    for (const size_t i : sorted_order(vm, keys, vm.bool_arg(a[2], false))) {
        if (!vm.push(pairs, vm.make_list({items[i].first, items[i].second}, Kind::kTuple)))
            return {};
    }
    return vm.make_list(std::move(pairs));
}

Value filter_sort(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("sort", args, {"reverse", "case_sensitive", "attribute"});
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const bool case_sensitive = vm.bool_arg(a[1], false);
    std::vector<std::vector<Value>> paths;
    if (a[2].is_str()) {
        const Value comma = vm.make_str(",");
        if (vm.failed()) return {};
        const Value names = split(vm, a[2].str(), &comma.str(), -1, false);
        if (vm.failed()) return {};
        for (const Value& name : names.get<SeqObject>().items)
            paths.push_back(attribute_path(vm, name));
    } else {
        paths.push_back(attribute_path(vm, a[2]));
    }
    std::vector<Value> keys;
    for (const Value& item : items->items) {
        std::vector<Value> key;
        for (const auto& path : paths) {
            const Value field = follow(vm, item, path);
            key.push_back(case_sensitive ? field : ignore_case(vm, field));
        }
        if (!vm.push(keys, vm.make_list(std::move(key)))) return {};
    }
    std::vector<Value> sorted;
    for (const size_t i : sorted_order(vm, keys, vm.bool_arg(a[0], false)))
        sorted.push_back(items->items[i]);
    return vm.make_list(std::move(sorted));
}

Value filter_unique(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("unique", args, {"case_sensitive", "attribute"});
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const bool case_sensitive = vm.bool_arg(a[0], false);
    const std::vector<Value> path = attribute_path(vm, a[1]);
    std::set<std::string> seen;
    std::vector<Value> kept;
    for (const Value& item : items->items) {
        const Value field = follow(vm, item, path);
        std::string key;
        if (vm.failed()) return {};
        if (!dict_key(case_sensitive ? field : ignore_case(vm, field), key)) {
            return vm.error("unhashable type: '" + std::string(type_name(field.kind)) + "'");
        }
        if (!vm.room(key.size() * 2)) return {};
        if (seen.insert(std::move(key)).second && !vm.push(kept, item)) return {};
    }
    return vm.make_list(std::move(kept), Kind::kGenerator);
}

template <bool Max>
Value filter_extreme(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind(Max ? "max" : "min", args, {"case_sensitive", "attribute"});
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    if (items->items.empty()) return vm.make_undefined("No aggregated item, sequence was empty.");
    const bool case_sensitive = vm.bool_arg(a[0], false);
    const std::vector<Value> path = attribute_path(vm, a[1]);
    const auto key_of = [&](const Value& item) {
        const Value field = follow(vm, item, path);
        return case_sensitive ? field : ignore_case(vm, field);
    };
    size_t best = 0;
    Value best_key = key_of(items->items[0]);
    for (size_t i = 1; i < items->items.size() && !vm.failed(); ++i) {
        Value key = key_of(items->items[i]);
        if (vm.compare(key, best_key, Max ? ">" : "<") != (Max ? 1 : -1)) continue;
        best = i;
        best_key = std::move(key);
    }
    return items->items[best];
}

Value filter_sum(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("sum", args, {"attribute", "start"});
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const std::vector<Value> path = attribute_path(vm, a[0]);
    Value total = a[1].is_missing() ? Value::of_int(0) : a[1];
    if (total.is_str()) return vm.error("sum() can't sum strings [use ''.join(seq) instead]");
    for (const Value& item : items->items) {
        if (!vm.spend()) return {};
        total = vm.add(total, follow(vm, item, path));
    }
    return total;
}

Value filter_map(Vm& vm, const Value& self, Args& args) {
    if (!vm.truthy(self)) return vm.make_list({}, Kind::kGenerator);
    const auto items = vm.iterate(self);
    if (items == nullptr) return {};
    std::vector<Value> mapped;
    if (args.positional.empty()) {
        const auto a = vm.bind("map", args, {"attribute", "default"}, 1);
        const std::vector<Value> path = attribute_path(vm, a[0]);
        for (const Value& item : items->items) {
            if (!vm.push(mapped, follow(vm, item, path, a[1]))) return {};
        }
        return vm.make_list(std::move(mapped), Kind::kGenerator);
    }
    if (!args.positional[0].is_str()) return vm.error("map takes a filter's name");
    for (const Value& item : items->items) {
        Args rest = args;
        rest.positional.erase(rest.positional.begin());
        if (!vm.push(mapped, vm.call_filter(args.positional[0].text(), item, rest))) return {};
    }
    return vm.make_list(std::move(mapped), Kind::kGenerator);
}

template <bool Keep, bool ByAttribute>
Value filter_select(Vm& vm, const Value& self, Args& args) {
    if (!vm.truthy(self)) return vm.make_list({}, Kind::kGenerator);
    const auto items = vm.iterate(self);
    if (items == nullptr) return {};
    const size_t offset = ByAttribute ? 1 : 0;
    if (args.positional.size() < offset) return vm.error("Missing parameter for attribute name");
    const std::vector<Value> path =
        ByAttribute ? attribute_path(vm, args.positional[0]) : std::vector<Value>{};
    const bool has_test = args.positional.size() > offset;
    if (has_test && !args.positional[offset].is_str())
        return vm.error("select takes a test's name");
    std::vector<Value> kept;
    for (const Value& item : items->items) {
        if (!vm.spend()) return {};
        const Value field = follow(vm, item, path);
        if (vm.failed()) return {};
        bool holds = false;
        if (has_test) {
            Args rest = args;
            rest.positional.erase(rest.positional.begin(),
                                  rest.positional.begin() + static_cast<ptrdiff_t>(offset) + 1);
            holds = vm.call_test(args.positional[offset].text(), field, rest);
        } else {
            holds = vm.truthy(field);
        }
        if (holds == Keep && !vm.push(kept, item)) return {};
    }
    return vm.make_list(std::move(kept), Kind::kGenerator);
}

Value filter_batch(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("batch", args, {"linecount", "fill_with"}, 1);
    const int64_t size = vm.int_arg(a[0], 1, "linecount");
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const bool fill = !a[1].is_missing() && !a[1].is(Kind::kNone);
    std::vector<Value> batches;
    std::vector<Value> now;
    for (const Value& item : items->items) {
        if (static_cast<int64_t>(now.size()) == size &&
            !vm.push(batches, vm.make_list(std::exchange(now, {}))))
            return {};
        if (!vm.push(now, item)) return {};
    }
    if (!now.empty()) {
        while (fill && static_cast<int64_t>(now.size()) < size) {
            if (!vm.push(now, a[1])) return {};
        }
        if (!vm.push(batches, vm.make_list(std::move(now)))) return {};
    }
    return vm.make_list(std::move(batches), Kind::kGenerator);
}

Value filter_slice(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("slice", args, {"slices", "fill_with"}, 1);
    const int64_t count = vm.int_arg(a[0], 1, "slices");
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    if (count == 0) return vm.error("integer division or modulo by zero");
    const bool fill = !a[1].is_missing() && !a[1].is(Kind::kNone);
    const auto size = static_cast<int64_t>(items->items.size());
    std::vector<Value> slices;
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t end = begin + size / count + (i < size % count ? 1 : 0);
        std::vector<Value> part(items->items.begin() + begin, items->items.begin() + end);
        if (fill && i >= size % count) part.push_back(a[1]);
        if (!vm.push(slices, vm.make_list(std::move(part)))) return {};
        begin = end;
    }
    return vm.make_list(std::move(slices), Kind::kGenerator);
}

Value filter_groupby(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
    const auto items = vm.failed() ? nullptr : vm.iterate(self);
    if (items == nullptr) return {};
    const std::vector<Value> path = attribute_path(vm, a[0]);
    const bool case_sensitive = vm.bool_arg(a[2], false);
    std::vector<Value> keys;
    std::vector<Value> shown;
    for (const Value& item : items->items) {
        const Value field = follow(vm, item, path, a[1]);
        if (!vm.push(shown, field) ||
            !vm.push(keys, case_sensitive ? field : ignore_case(vm, field)))
            return {};
    }
    std::vector<Value> groups;
    std::vector<Value> members;
    const std::vector<size_t> order = sorted_order(vm, keys, false);
    size_t first = 0;
    for (size_t i = 0; i < order.size() && !vm.failed(); ++i) {
        if (!vm.push(members, items->items[order[i]])) return {};
        if (i + 1 < order.size() && vm.equal(keys[order[i]], keys[order[i + 1]])) continue;
        const Value list = vm.make_list(std::exchange(members, {}));
        auto pair = std::make_shared<SeqObject>(&vm.budget(),
                                                std::vector<Value>{shown[order[first]], list});
        pair->group = true;
        if (!vm.push(groups, Value::of_object(Kind::kTuple, std::move(pair)))) return {};
        first = i + 1;
    }
    return vm.make_list(std::move(groups));
}

Value filter_attr(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("attr", args, {"name"}, 1);
    if (vm.failed()) return {};
    if (!a[0].is_str()) return vm.error("attr takes a name");
    // Unlike x.name, an item of that name does not count.
    if (self.is(Kind::kDict) && find_method(Kind::kDict, a[0].text()) == MethodUse::kNone) {
        return vm.make_undefined("'dict object' has no attribute '" +
                                 std::string(a[0].text().substr(0, 256)) + "'");
    }
    return vm.get_attr(self, a[0].text());
}

constexpr FilterEntry kFilters[] = {
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"groupby", filter_groupby},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

Builtin find_sequence_filter(std::string_view name) {
    const auto* it = std::lower_bound(
        std::begin(kFilters), std::end(kFilters), name,
        [](const FilterEntry& entry, std::string_view n) { return entry.name < n; });
    return it != std::end(kFilters) && it->name == name ? it->call : nullptr;
}

}  // namespace baton::text::jinja
