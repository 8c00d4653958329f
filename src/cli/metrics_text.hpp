#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::cli {

/// One reading of a server's /metrics (the text format of Prometheus).
class MetricsText {
  public:
    using Labels = std::map<std::string, std::string>;

    MetricsText() = default;
    /// Lines that are no samples are left out.
    explicit MetricsText(std::string_view text);

    /// The sum of a metric's samples that have all of `where`; nothing where there is none.
    [[nodiscard]] std::optional<double> sum(const std::string& name, const Labels& where = {}) const;
    /// Samples of a histogram by upper bound, summed over what has all of `where`.
    [[nodiscard]] std::map<double, double> buckets(const std::string& name, const Labels& where = {}) const;

  private:
    std::map<std::string, std::vector<std::pair<Labels, double>>> samples_;
};

/// What a counter grew by between two readings. One that went back counts from zero: its process is new.
[[nodiscard]] std::optional<double> growth(const MetricsText& before, const MetricsText& now, const std::string& name, const MetricsText::Labels& where = {});
/// Quantile `q` (0 to 1) of what a histogram took in between two readings, linear within a bucket; nothing where nothing came.
[[nodiscard]] std::optional<double> quantile(const MetricsText& before, const MetricsText& now, const std::string& name, double q, const MetricsText::Labels& where = {});

}  // namespace baton::cli
