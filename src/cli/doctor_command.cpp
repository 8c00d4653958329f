// `baton doctor`: whether this host is fit to serve, and what to do where it is not.
#include <cstdio>
#include <iterator>

#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"

namespace baton::cli {

int report_doctor(const config::SupervisorSettings& settings, const std::string& model, bool json) {
    std::vector<Finding> all;
    const auto add = [&](std::vector<Finding> found) { all.insert(all.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end())); };
    add(check_processor());
    add(check_memory());
    add(check_gpus());
    add(check_limits());
    add(check_folders(settings));
    add(check_addresses(settings));
    add(check_files(settings));
    add(check_model(model));
    bool bad = false;
    for (const Finding& f : all) bad = bad || f.state == Finding::State::kBad;
    if (json) {
        Json rows = Json::array();
        for (const Finding& f : all) rows.push_back({{"state", to_string(f.state)}, {"what", f.what}, {"found", f.found}, {"advice", f.advice}});
        const int printed = print_json({{"version", BATON_VERSION}, {"fit", !bad}, {"findings", rows}});
        return printed != kDone ? printed : bad ? kFailed : kDone;
    }
    std::printf("baton %s\n", BATON_VERSION);
    for (const Finding& f : all) {
        std::printf("%-8s %s: %s\n", std::string(to_string(f.state)).c_str(), f.what.c_str(), printable(f.found).c_str());
        if (!f.advice.empty()) std::printf("         → %s\n", f.advice.c_str());
    }
    std::printf("%s\n", bad ? "Something is missing: see what is marked bad." : "This host can serve.");
    if (!flush_output()) return kFailed;
    return bad ? kFailed : kDone;
}

}  // namespace baton::cli
