#include <algorithm>
#include <cctype>
#include <cstdio>

#include "cli/commands.hpp"
#include "cli/user_files.hpp"

/// Commands about what a server can launch: registrations, engines, files that are there already.
namespace baton::cli {
namespace {

std::string joined(const Json& object, const char* key) {
    const Json* list = member_of(object, key);
    if (list == nullptr) return "-";
    if (!list->is_array()) return text_of(object, key);
    std::string out;
    for (const Json& one : *list) out += (out.empty() ? "" : ", ") + (one.is_string() ? one.get<std::string>() : one.dump());
    return out.empty() ? "-" : out;
}

/// The sizes of a family's specs, each once: "0.5, 1.5, 7".
std::string sizes_of(const Json& family) {
    const Json* specs = member_of(family, "model_specs");
    if (specs == nullptr || !specs->is_array()) return "-";
    std::vector<std::string> sizes;
    for (const Json& spec : *specs) {
        std::string size = text_of(spec, "model_size_in_billions");
        std::replace(size.begin(), size.end(), '_', '.');
        if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
    }
    std::string out;
    for (const std::string& size : sizes) out += (out.empty() ? "" : ", ") + size;
    return out.empty() ? "-" : out;
}

bool same_word(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// "0_5", "0.5" and 0.5 are one size.
std::string size_text(const std::string& text) {
    std::string out = text;
    std::replace(out.begin(), out.end(), '_', '.');
    return out;
}

bool contains(const Json& list, const std::string& wanted) {
    return list.is_array() && std::any_of(list.begin(), list.end(), [&](const Json& q) { return q.is_string() && same_word(q.get<std::string>(), wanted); });
}

/// A row for each quantization of each spec that the options leave.
void add_engine_rows(const ModelOptions& o, const std::string& engine, const Json& specs, Table& table) {
    for (const Json& spec : specs) {
        const Json* quantizations = member_of(spec, "quantizations");
        const Json list = quantizations != nullptr && quantizations->is_array() && !quantizations->empty() ? *quantizations : Json::array({"-"});
        if (!o.model_format.empty() && !same_word(o.model_format, text_of(spec, "model_format"))) continue;
        if (!o.size_in_billions.empty() && size_text(o.size_in_billions) != size_text(text_of(spec, "model_size_in_billions"))) continue;
        if (!o.quantization.empty() && !contains(list, o.quantization)) continue;
        for (const Json& q : list) {
            const std::string name = q.is_string() ? q.get<std::string>() : q.dump();
            if (!o.quantization.empty() && !same_word(o.quantization, name)) continue;
            table.rows.push_back({o.model_name, engine, text_of(spec, "model_format"), text_of(spec, "model_size_in_billions"), name});
        }
    }
}

}  // namespace

int run_registrations(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/model_registrations/" + encode_path(options.model_type) + "?detailed=true", answer)) return kFailed;
    if (options.json) return print_json(answer);
    Table table{{{"NAME"}, {"SIZES (B)"}, {"CONTEXT", true}, {"ABILITIES"}, {"LANGUAGES"}, {"BUILT IN"}}, {}};
    for (const Json& family : answer) {
        const Json* built_in = member_of(family, "is_builtin");
        table.rows.push_back({text_of(family, "model_name"), sizes_of(family), text_of(family, "context_length"), joined(family, "model_ability"),
                              joined(family, "model_lang"), built_in != nullptr && *built_in == true ? "yes" : "no"});
    }
    print_table(table);
    return kDone;
}

int run_register(const ModelOptions& options) {
    const auto text = read_text_file(options.file);
    if (!text) {
        complain("--file: " + text.error().message);
        return kUsage;
    }
    const Json model = Json::parse(*text, nullptr, false);
    if (!model.is_object()) {
        complain("--file: " + options.file + " does not hold a JSON object");
        return kUsage;
    }
    ClientSession session(options.server);
    const Json body{{"model", *text}, {"worker_ip", options.worker_ip.empty() ? Json(nullptr) : Json(options.worker_ip)}, {"persist", options.persist}};
    Json answer;
    if (!session.call("POST", "/v1/model_registrations/" + encode_path(options.model_type), body.dump(-1, ' ', false, Json::error_handler_t::replace), answer))
        return kFailed;
    std::printf("registered %s\n", printable(text_of(model, "model_name")).c_str());
    return kDone;
}

int run_unregister(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.call("DELETE", "/v1/model_registrations/" + encode_path(options.model_type) + "/" + encode_path(options.model_name), "", answer))
        return kFailed;
    std::printf("unregistered %s\n", printable(options.model_name).c_str());
    return kDone;
}

int run_engine(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/engines/" + encode_path(options.model_type) + "/" + encode_path(options.model_name), answer)) return kFailed;
    if (options.json) return print_json(answer);
    Table table{{{"NAME"}, {"ENGINE"}, {"FORMAT"}, {"SIZE (B)", true}, {"QUANTIZATION"}}, {}};
    if (answer.is_object())
        for (const auto& [engine, specs] : answer.items())
            if (specs.is_array() && (options.model_engine.empty() || same_word(options.model_engine, engine)))
                add_engine_rows(options, engine, specs, table);
    if (table.rows.empty()) {
        complain("no engine serves " + options.model_name + " with these options");
        return kFailed;
    }
    print_table(table);
    return kDone;
}

int run_cached(const ModelOptions& options) {
    ClientSession session(options.server);
    std::string query;
    if (!options.model_name.empty()) query += "?model_name=" + encode_path(options.model_name);
    if (!options.worker_ip.empty()) query += (query.empty() ? "?worker_ip=" : "&worker_ip=") + encode_path(options.worker_ip);
    Json answer;
    if (!session.get("/v1/cache/models" + query, answer)) return kFailed;
    if (options.json) return print_json(answer);
    const Json* list = member_of(answer, "list");
    if (list == nullptr || !list->is_array() || list->empty()) {
        std::printf("no model files are there\n");
        return kDone;
    }
    Table table{{{"NAME"}, {"FORMAT"}, {"SIZE (B)", true}, {"QUANTIZATION"}, {"WORKER"}, {"PATH"}}, {}};
    for (const Json& m : *list)
        table.rows.push_back({text_of(m, "model_name"), text_of(m, "model_format"), text_of(m, "model_size_in_billions"), text_of(m, "quantization"),
                              text_of(m, "actor_ip_address"), text_of(m, "real_path") == "-" ? text_of(m, "path") : text_of(m, "real_path")});
    print_table(table);
    return kDone;
}

}  // namespace baton::cli
