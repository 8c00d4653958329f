#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "baton/config/settings.hpp"
#include "baton/http/router.hpp"
#include "baton/openai/error.hpp"
#include "baton/openai/request.hpp"
#include "baton/openai/response.hpp"
#include "deployment.hpp"
#include "inference_session.hpp"
#include "model_directory.hpp"
#include "stream_flushes.hpp"
#include "text_api.hpp"

namespace baton::supervisor {

/// /v1/chat/completions, /v1/completions and the abort route: from an HTTP exchange to sequences and back (steps 1–3 and
/// 10 of docs/LIFE_OF_A_REQUEST.md). Parsing, templates and tokenizing run on the text pool, or on the I/O thread where a
/// request is short; the rest on the control thread.
class InferenceApi {
  public:
    struct Services {
        boost::asio::io_context& control;
        boost::asio::thread_pool& text;
        const config::SupervisorSettings& settings;
        ModelDirectory& models;
        std::function<std::shared_ptr<Deployment>(const std::string& uid)> deployment;  ///< control thread
    };
    explicit InferenceApi(Services services) : services_(std::move(services)), texts_(services_.text, services_.settings, services_.models) {}

    void add_routes(http::Router& router);
    /// Control thread, after each of its handlers: what they wrote to streams goes out.
    void flush_streams() { flushes_.run(); }
    /// Control thread. New requests are refused from now on.
    void set_draining() { draining_ = true; }
    [[nodiscard]] size_t running() const { return sessions_.size(); }
    /// Ends every request with an error.
    void abort_all(std::string_view reason);

  private:
    void handle(std::shared_ptr<http::Exchange> exchange, bool chat);
    void messages(std::shared_ptr<http::Exchange> exchange, const std::string& body, bool version_needed);
    void responses(std::shared_ptr<http::Exchange> exchange, const std::string& body);
    void prepare(std::shared_ptr<http::Exchange> exchange, std::string body, bool chat);
    [[nodiscard]] openai::ParseOptions parse_options(const http::Exchange& exchange) const;
    void prepare_chat(PreparedRequest prepared, std::string_view body);
    void prepare_completion(PreparedRequest prepared, std::string_view body);
    void finish_prepare(PreparedRequest prepared, openai::GenerationOptions options, std::vector<std::vector<TokenId>> prompts);
    void run(PreparedRequest prepared);
    void progress_route(const std::shared_ptr<http::Exchange>& exchange, const std::string& request_id);
    void unsupported(const std::shared_ptr<http::Exchange>& exchange, const std::string& body, const char* what);
    void abort_route(const std::shared_ptr<http::Exchange>& exchange, const std::string& uid, const std::string& request_id, std::string body);

    Services services_;
    TextApi texts_;
    StreamFlushes flushes_;
    std::map<std::pair<std::string, std::string>, std::shared_ptr<InferenceSession>> sessions_;  ///< by (uid, request id)
    std::map<std::pair<std::string, std::string>, TimeMs> blocked_;                     ///< aborted ids, until when
    bool draining_ = false;
    std::atomic<int64_t> not_here_until_us_{0};  ///< I/O threads prepare nothing before that
};

}  // namespace baton::supervisor
