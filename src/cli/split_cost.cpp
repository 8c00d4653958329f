#include "cli/split_cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>

/// The time of a step as a function of what is in it, fitted to steps that were timed.
namespace baton::cli::split {
namespace {

/// Solves the normal equations of the chosen columns by Gaussian elimination; empty where they are singular.
std::vector<double> solve(const std::vector<std::vector<double>>& x, const std::vector<double>& y, const std::vector<size_t>& columns) {
    const size_t n = columns.size();
    std::vector<std::vector<double>> m(n, std::vector<double>(n + 1, 0));
    for (size_t row = 0; row < x.size(); ++row)
        for (size_t i = 0; i < n; ++i) {
            const double left = x[row][columns[i]] / y[row];
            for (size_t j = 0; j < n; ++j) m[i][j] += left * x[row][columns[j]] / y[row];
            m[i][n] += left;
        }
    for (size_t i = 0; i < n; ++i) {
        const double scale = m[i][i];
        size_t pivot = i;
        for (size_t k = i + 1; k < n; ++k)
            if (std::abs(m[k][i]) > std::abs(m[pivot][i])) pivot = k;
        std::swap(m[i], m[pivot]);
        if (std::abs(m[i][i]) <= 1e-12 * std::max(std::abs(scale), 1e-300)) return {};
        for (size_t k = 0; k < n; ++k) {
            if (k == i) continue;
            const double factor = m[k][i] / m[i][i];
            for (size_t j = i; j <= n; ++j) m[k][j] -= factor * m[i][j];
        }
    }
    std::vector<double> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = m[i][n] / m[i][i];
    return out;
}

double squared_error(const std::vector<std::vector<double>>& x, const std::vector<double>& y, const std::vector<double>& c) {
    double sum = 0;
    for (size_t row = 0; row < x.size(); ++row) {
        double value = 0;
        for (size_t i = 0; i < c.size(); ++i) value += c[i] * x[row][i];
        sum += (value / y[row] - 1) * (value / y[row] - 1);
    }
    return sum;
}

StepLoad load_of(const StepSample& s) {
    StepLoad load;
    if (s.prompt_tokens > 0) load.add_chunk(s.prompt_tokens, s.position);
    load.rows = s.rows;
    load.positions = static_cast<double>(s.rows) * s.context;
    return load;
}

std::string number(const char* format, double value) {
    char text[40];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

}  // namespace

std::vector<double> fit_nonnegative(const std::vector<std::vector<double>>& x, const std::vector<double>& y) {
    const size_t n = x.empty() ? 0 : x.front().size();
    std::vector<double> best(n, 0);
    double least = squared_error(x, y, best);
    for (uint32_t subset = 1; subset < 1u << n; ++subset) {
        if (static_cast<size_t>(std::popcount(subset)) > x.size()) continue;
        std::vector<size_t> columns;
        for (size_t i = 0; i < n; ++i)
            if ((subset >> i & 1) != 0) columns.push_back(i);
        const std::vector<double> some = solve(x, y, columns);
        if (some.empty() || std::any_of(some.begin(), some.end(), [](double v) { return v < 0; })) continue;
        std::vector<double> all(n, 0);
        for (size_t i = 0; i < columns.size(); ++i) all[columns[i]] = some[i];
        const double error = squared_error(x, y, all);
        if (error < least - 1e-12) {
            least = error;
            best = all;
        }
    }
    return best;
}

Expected<StepCost> StepCost::fit(std::span<const StepSample> samples) {
    StepCost cost;
    std::vector<std::vector<double>> chunk_x, rows_x, mixed_x;
    std::vector<double> chunk_y, rows_y;
    std::vector<StepSample> decode, mixed;
    for (const StepSample& s : samples) {
        if (!std::isfinite(s.us) || s.us <= 0) return fail(ErrorCode::kInvalidArgument, "a step's time must be above 0");
        const StepLoad load = load_of(s);
        if (s.prompt_tokens > 0 && s.rows > 0) {
            mixed.push_back(s);
        } else if (s.prompt_tokens > 0) {
            chunk_x.push_back({1, load.prompt_tokens, load.prompt_pairs});
            chunk_y.push_back(s.us);
        } else if (s.rows > 0) {
            rows_x.push_back({1, load.rows, load.positions});
            rows_y.push_back(s.us);
            decode.push_back(s);
        }
    }
    if (chunk_x.empty()) return fail(ErrorCode::kInvalidArgument, "no time of a prompt is known", "prefill");
    if (rows_x.empty()) return fail(ErrorCode::kInvalidArgument, "no time of a decode step is known", "decode");
    // One point says how long a token takes, not what a step costs by itself.
    const bool one_length = chunk_x.size() == 1;
    if (one_length) chunk_x = {{0, chunk_x[0][1], 0}};
    std::ranges::copy(fit_nonnegative(chunk_x, chunk_y), cost.chunk_);
    std::ranges::copy(fit_nonnegative(rows_x, rows_y), cost.rows_);
    cost.fit_correction(decode);
    double sum = 0;
    for (const StepSample& s : mixed) {
        StepLoad load = load_of(s);
        sum += std::max(0.0, (s.us - cost.chunk_us(load) - cost.rows_[2] * load.positions) / load.rows);
    }
    cost.beside_ = mixed.empty() ? std::max(cost.chunk_[1], cost.rows_[1]) : sum / static_cast<double>(mixed.size());
    for (const StepSample& s : samples) cost.worst_error_ = std::max(cost.worst_error_, std::abs(cost.us(load_of(s)) / s.us - 1));
    return cost;
}

void StepCost::fit_correction(std::span<const StepSample> decode) {
    std::map<uint32_t, std::pair<double, uint32_t>> ratios;
    for (const StepSample& s : decode) {
        const double fitted = rows_[0] + rows_[1] * s.rows + rows_[2] * s.rows * s.context;
        auto& [sum, count] = ratios[s.rows];
        sum += fitted > 0 ? s.us / fitted : 1;
        ++count;
    }
    for (const auto& [batch, ratio] : ratios) correction_.emplace_back(batch, ratio.first / ratio.second);
}

double StepCost::correction(double batch) const {
    const auto above = std::lower_bound(correction_.begin(), correction_.end(), batch, [](const auto& point, double b) { return point.first < b; });
    if (above == correction_.end()) return correction_.back().second;
    if (above == correction_.begin()) return above->second;
    const auto below = above - 1;
    return below->second + (above->second - below->second) * (batch - below->first) / (above->first - below->first);
}

double StepCost::chunk_us(const StepLoad& l) const { return chunk_[0] + chunk_[1] * l.prompt_tokens + chunk_[2] * l.prompt_pairs; }

double StepCost::rows_us(const StepLoad& l) const {
    return l.rows > 0 ? (rows_[0] + rows_[1] * l.rows + rows_[2] * l.positions) * correction(l.rows) : 0;
}

double StepCost::us(const StepLoad& l) const {
    if (l.prompt_tokens <= 0) return rows_us(l);
    return std::max(rows_us(l), chunk_us(l) + beside_ * l.rows + rows_[2] * l.positions);
}

double StepCost::prompt_share(const StepLoad& l) const {
    if (l.prompt_tokens <= 0) return 0;
    const double all = us(l);
    return all > 0 ? std::clamp((all - beside_ * l.rows - rows_[2] * l.positions) / all, 0.0, 1.0) : 1;
}

double StepCost::prefill_us(uint32_t cached, uint32_t tokens, uint32_t step_tokens) const {
    double sum = 0;
    for (uint32_t done = 0; done < tokens;) {
        const uint32_t n = std::min(tokens - done, std::max(step_tokens, 1u));
        StepLoad load;
        load.add_chunk(n, static_cast<double>(cached) + done);
        sum += chunk_us(load);
        done += n;
    }
    return sum;
}

double StepCost::decode_us(double batch, double context) const {
    StepLoad load;
    load.rows = batch;
    load.positions = batch * context;
    return rows_us(load);
}

std::vector<std::string> StepCost::formulas() const {
    const auto ms = [](double us) { return number("%.4g", us / 1000); };
    std::string corrections;
    for (const auto& [batch, ratio] : correction_) corrections += (corrections.empty() ? "" : ", ") + number("%.0f", batch) + ": " + number("%.2f", ratio);
    return {"a chunk of n prompt tokens at position p: " + ms(chunk_[0]) + " + " + ms(chunk_[1]) + "·n + " + ms(chunk_[2]) + "·(2pn + n²) ms",
            "a decode step of B sequences with K positions in all: (" + ms(rows_[0]) + " + " + ms(rows_[1]) + "·B + " + ms(rows_[2]) +
                "·K)·r(B) ms, r by B: " + corrections,
            "a chunk beside B sequences that decode: the chunk + " + ms(beside_) + "·B + " + ms(rows_[2]) + "·K ms"};
}

Json StepCost::json() const {
    Json corrections = Json::array();
    for (const auto& [batch, ratio] : correction_) corrections.push_back({batch, ratio});
    return {{"chunk_us", {chunk_[0], chunk_[1], chunk_[2]}}, {"decode_us", {rows_[0], rows_[1], rows_[2]}}, {"decode_correction", corrections},
            {"row_beside_chunk_us", beside_}, {"worst_error", worst_error_}};
}

}  // namespace baton::cli::split
