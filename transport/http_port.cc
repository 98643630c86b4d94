#include "transport/http_port.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// A client that says nothing has a thread until its time is over: a few of them must not keep a
// health check waiting.
constexpr char kThreadsCount[] = "16";
constexpr char kRequestTimeoutMs[] = "2000";
constexpr std::chrono::milliseconds kTouchInterval{5};

// CivetWeb is set up once a process.
void InitCivetWeb() {
  static const unsigned features = mg_init_library(MG_FEATURES_DEFAULT);
  (void)features;
}

void Send(mg_connection* connection, const HttpReply& reply) {
  const char* reason = reply.code == 200   ? "OK"
                       : reply.code == 404 ? "Not Found"
                       : reply.code == 405 ? "Method Not Allowed"
                                           : "Service Unavailable";
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            reply.code, reason, reply.content_type, reply.body.size());
  mg_write(connection, reply.body.data(), reply.body.size());
}

class CivetHttpPort final : public HttpPort {
 public:
  explicit CivetHttpPort(Handlers handlers) : handlers_(std::move(handlers)) {}
  ~CivetHttpPort() override {
    if (context_ == nullptr) return;
    // CivetWeb sees a stop only when its poll of two seconds ends, or somebody connects.
    std::atomic<bool> is_stopped{false};
    std::thread stopping([&] {
      mg_stop(context_);
      is_stopped = true;
    });
    while (!is_stopped) {
      Touch();
      std::this_thread::sleep_for(kTouchInterval);
    }
    stopping.join();
  }

  absl::Status Listen(const std::string& listen) {
    InitCivetWeb();
    const char* options[] = {"listening_ports",    listen.c_str(),    "num_threads", kThreadsCount,
                             "request_timeout_ms", kRequestTimeoutMs, nullptr};
    mg_callbacks callbacks;
    std::memset(&callbacks, 0, sizeof callbacks);
    callbacks.log_message = [](const mg_connection*, const char* message) {
      IBID_LOG(debug, "HTTP port: {}", message);
      return 1;
    };
    context_ = mg_start(&callbacks, nullptr, options);
    if (context_ == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen for HTTP on ", listen,
                       ": the port may be in use, or the address not this machine's; give another "
                       "--http_listen"));
    }
    mg_set_request_handler(context_, "**", &CivetHttpPort::Handle, this);
    mg_server_port ports[1] = {};
    IBID_CHECK(mg_get_server_ports(context_, 1, ports) == 1);
    port_ = ports[0].port;
    host_ = listen.substr(0, listen.rfind(':'));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  static int Handle(mg_connection* connection, void* self) {
    const mg_request_info* request = mg_get_request_info(connection);
    const HttpReply reply = static_cast<const CivetHttpPort*>(self)->Answer(request->request_method,
                                                                            request->local_uri);
    Send(connection, reply);
    return reply.code;
  }

  // Connects to this port and hangs up.
  void Touch() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    // A host that is no IPv4 address, or all of them, is reached by loopback or not at all.
    if (inet_pton(AF_INET, host_.c_str(), &address.sin_addr) != 1 ||
        address.sin_addr.s_addr == htonl(INADDR_ANY)) {
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    (void)connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    close(fd);
  }

  HttpReply Answer(absl::string_view method, const char* path) const {
    const auto it = handlers_.find(path == nullptr ? "" : path);
    if (it == handlers_.end()) return {404, "not found\n"};
    if (method != "GET") return {405, "only GET\n"};
    return it->second();
  }

  const Handlers handlers_;
  mg_context* context_ = nullptr;
  int port_ = 0;
  std::string host_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const std::string& listen,
                                                          Handlers handlers) {
  // CivetWeb would read more into a list of ports: several of them, TLS, redirection.
  if (listen.find_first_of(",srxo ") != std::string::npos ||
      listen.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--http_listen=", listen, ": use an IP address and a port, as 127.0.0.1:7071"));
  }
  auto port = std::make_unique<CivetHttpPort>(std::move(handlers));
  IBID_RETURN_IF_ERROR(port->Listen(listen));
  return std::unique_ptr<HttpPort>(std::move(port));
}

}  // namespace ibid
