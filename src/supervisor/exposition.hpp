#pragma once

#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "request_metrics.hpp"

namespace baton::supervisor {

/// Collects samples by metric name, so that each family is printed once with its type.
class Exposition {
  public:
    using Labels = std::vector<std::pair<std::string, std::string>>;
    /// What a family is; its samples come by its name.
    struct About {
        const char *name, *type, *help;  ///< type: counter, gauge or histogram
    };
    /// Announces families: they are printed with type and help whether or not samples come.
    void declare(std::span<const About> families) {
        for (const About& a : families) families_[a.name] = {a.type, a.help, {}};
    }
    /// A sample of a declared family; of another one it stands without type and help.
    void add(const char* name, const Labels& labels, double value) { line(family(name), name, labels, value); }
    /// A histogram's buckets, sum and count.
    void add(const char* name, const Labels& labels, const Histogram& histogram) {
        const std::string bucket = std::string(name) + "_bucket", sum = std::string(name) + "_sum", count = std::string(name) + "_count";
        Family& f = family(name);
        Labels with_bound = labels;
        with_bound.emplace_back("le", "");
        for (size_t i = 0; i < histogram.bounds().size(); ++i) {
            with_bound.back().second = shortest(histogram.bounds()[i]);
            line(f, bucket, with_bound, static_cast<double>(histogram.up_to(i)));
        }
        with_bound.back().second = "+Inf";
        line(f, bucket, with_bound, static_cast<double>(histogram.count()));
        line(f, sum, labels, histogram.sum());
        line(f, count, labels, static_cast<double>(histogram.count()));
    }
    [[nodiscard]] std::string text() const {
        std::string out;
        for (const auto& [name, f] : families_) out += "# HELP " + name + " " + f.help + "\n# TYPE " + name + " " + f.type + "\n" + f.lines;
        return out;
    }

  private:
    struct Family {
        std::string type, help, lines;
    };
    Family& family(const char* name) {
        return families_.try_emplace(name, Family{"untyped", "", ""}).first->second;
    }
    static void line(Family& f, const std::string& name, const Labels& labels, double value) {
        f.lines += name;
        if (!labels.empty()) {
            f.lines += '{';
            for (size_t i = 0; i < labels.size(); ++i) {
                if (i != 0) f.lines += ',';
                f.lines += labels[i].first + "=\"" + escape(labels[i].second) + '"';
            }
            f.lines += '}';
        }
        char number[40];
        std::snprintf(number, sizeof number, " %.17g\n", value);
        f.lines += number;
    }
    static std::string shortest(double value) {
        char number[40];
        std::snprintf(number, sizeof number, "%g", value);
        return number;
    }
    static std::string escape(const std::string& s) {
        std::string out;
        for (const char c : s) {
            if (c == '\\' || c == '"') out += '\\';
            if (c == '\n') out += "\\n";
            else out += c;
        }
        return out;
    }
    std::map<std::string, Family> families_;
};

}  // namespace baton::supervisor
