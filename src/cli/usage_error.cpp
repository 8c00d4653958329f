#include "cli/usage_error.hpp"

#include <regex>
#include <sstream>
#include <vector>

namespace baton::cli {
namespace {

/// Words that no option or argument took, in the order of the command line (CLI11 has them last first).
std::string extras(const std::string& words) {
    std::istringstream in(words);
    std::vector<std::string> all;
    for (std::string word; in >> word;) all.insert(all.begin(), word);
    for (const std::string& word : all)
        if (word.starts_with('-')) return "there is no option " + word;
    return all.empty() ? "a word is too many" : "'" + all.front() + "' is not expected here";
}

/// A bound as it is stored, 0.001000, as one writes it.
std::string bound(std::string text) {
    if (text.find('.') == std::string::npos) return text;
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text;
}

}  // namespace

std::string plain_usage_error(const std::string& what) {
    std::smatch m;
    if (std::regex_match(what, m, std::regex("The following arguments? (?:was|were) not expected: (.*)"))) return extras(m[1]);
    if (std::regex_match(what, m, std::regex("Could not convert: (\\S+) = (.*)"))) return m[1].str() + ": '" + m[2].str() + "' is not a number that it takes";
    if (std::regex_match(what, m, std::regex("(\\S+): \\d+ required \\S+ missing"))) return m[1].str() + " needs a value";
    if (std::regex_match(what, m, std::regex("(\\S+) excludes (\\S+)"))) return m[1].str() + " and " + m[2].str() + " do not go together";
    if (what == "A subcommand is required") return "a command is missing";
    if (std::regex_match(what, m, std::regex("(.* not in range )(\\S+) to (\\S+)"))) return m[1].str() + bound(m[2]) + " to " + bound(m[3]);
    return what;
}

}  // namespace baton::cli
