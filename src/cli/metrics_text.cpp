#include "cli/metrics_text.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace baton::cli {
namespace {

/// The value at the start of `text`, with the names that the format has beside numbers.
std::optional<double> number(std::string_view text) {
    text = text.substr(0, text.find(' '));
    if (text == "+Inf") return std::numeric_limits<double>::infinity();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// Reads `name="value",…}` from `at` on; `at` is then behind the brace. False where it is malformed.
bool read_labels(std::string_view line, size_t& at, MetricsText::Labels& labels) {
    while (at < line.size() && line[at] != '}') {
        const size_t equals = line.find("=\"", at);
        if (equals == std::string_view::npos) return false;
        std::string name(line.substr(at, equals - at)), value;
        for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
            if (line[at] == '\\' && at + 1 < line.size()) ++at, value += line[at] == 'n' ? '\n' : line[at];
            else value += line[at];
        }
        labels[std::move(name)] = std::move(value);
        if (++at < line.size() && line[at] == ',') ++at;
    }
    return at++ < line.size();
}

bool has_all(const MetricsText::Labels& labels, const MetricsText::Labels& where) {
    return std::all_of(where.begin(), where.end(), [&](const auto& w) {
        const auto found = labels.find(w.first);
        return found != labels.end() && found->second == w.second;
    });
}

}  // namespace

MetricsText::MetricsText(std::string_view text) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        size_t at = line.find_first_of("{ ");
        if (line.starts_with('#') || at == std::string_view::npos) continue;
        const std::string name(line.substr(0, at));
        Labels labels;
        if (line[at] == '{' && !read_labels(line, ++at, labels)) continue;
        if (at >= line.size() || line[at] != ' ') continue;
        if (const auto value = number(line.substr(at + 1))) samples_[name].emplace_back(std::move(labels), *value);
    }
}

std::optional<double> MetricsText::sum(const std::string& name, const Labels& where) const {
    std::optional<double> total;
    if (const auto all = samples_.find(name); all != samples_.end())
        for (const auto& [labels, value] : all->second)
            if (has_all(labels, where)) total = total.value_or(0) + value;
    return total;
}

std::map<double, double> MetricsText::buckets(const std::string& name, const Labels& where) const {
    std::map<double, double> out;
    if (const auto all = samples_.find(name + "_bucket"); all != samples_.end()) {
        for (const auto& [labels, value] : all->second) {
            const auto bound = labels.find("le");
            if (bound == labels.end() || !has_all(labels, where)) continue;
            if (const auto le = number(bound->second)) out[*le] += value;
        }
    }
    return out;
}

std::optional<double> growth(const MetricsText& before, const MetricsText& now, const std::string& name, const MetricsText::Labels& where) {
    const auto end = now.sum(name, where);
    if (!end) return std::nullopt;
    const double begin = before.sum(name, where).value_or(0);
    return *end >= begin ? *end - begin : *end;
}

std::optional<double> quantile(const MetricsText& before, const MetricsText& now, const std::string& name, double q, const MetricsText::Labels& where) {
    const auto old = before.buckets(name, where);
    std::vector<std::pair<double, double>> counts;  // by bound, cumulative
    for (const auto& [bound, count] : now.buckets(name, where)) {
        const auto was = old.find(bound);
        counts.emplace_back(bound, std::max(0.0, count - (was == old.end() ? 0 : was->second)));
    }
    if (counts.empty() || counts.back().second <= 0) return std::nullopt;
    const double at = q * counts.back().second;
    double low = 0, below = 0;
    for (const auto& [bound, count] : counts) {
        if (count >= at && bound != std::numeric_limits<double>::infinity())
            return low + (bound - low) * (at - below) / std::max(1e-9, count - below);
        if (bound != std::numeric_limits<double>::infinity()) low = bound, below = count;
    }
    return low;  // beyond the last bound
}

}  // namespace baton::cli
