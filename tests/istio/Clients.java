import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertPathValidatorException;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * TLS clients that read keystore and truststore from the files of a mounted Secret for each connection, and make one request.
 *
 * <p>Arguments: the password, milliseconds between the connections of a client, {@code HOST,IP,PORT} of each gateway separated by spaces, and for
 * each client {@code NAME,DIRECTORY,jks|p12}. A line is printed for each connection: client, host, {@code ok} or who ended it, and why, separated
 * by tabs. The process ends with its standard input.
 */
public final class Clients {
  private static final int TIMEOUT_MILLIS = 20_000;

  public static void main(String[] arguments) throws Exception {
    char[] password = arguments[0].toCharArray();
    long every = Long.parseLong(arguments[1]);
    String[] targets = arguments[2].split(" ");
    for (int at = 3; at < arguments.length; at++) {
      String[] client = arguments[at].split(",");
      Thread thread = new Thread(() -> run(client[0], Path.of(client[1]), client[2], password, every, targets));
      thread.setDaemon(true);
      thread.start();
    }
    while (System.in.read() >= 0) {}
  }

  private static void run(String name, Path directory, String extension, char[] password, long every, String[] targets) {
    long next = System.nanoTime();
    for (int turn = 0; ; turn++) {
      String[] target = targets[turn % targets.length].split(",");
      long began = System.nanoTime();
      String result = visit(directory, extension, password, target);
      long micros = (System.nanoTime() - began) / 1000;
      System.out.println(name + "\t" + target[0] + "\t" + micros + "\t" + result.replace('\n', ' '));
      next += every * 1_000_000;
      try {
        Thread.sleep(Math.max(0, (next - System.nanoTime()) / 1_000_000));
      } catch (InterruptedException interrupted) {
        return;
      }
    }
  }

  private static String visit(Path directory, String extension, char[] password, String[] target) {
    try {
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(load(directory.resolve("truststore." + extension), extension, password));
      KeyManagerFactory key = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
      key.init(load(directory.resolve("keystore." + extension), extension, password), password);
      // Another context for each connection: a resumed session shows no certificate.
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(key.getKeyManagers(), trust.getTrustManagers(), null);
      request(context, target);
      return "ok\t";
    } catch (Exception exception) {
      return side(exception) + "\t" + exception;
    }
  }

  private static KeyStore load(Path file, String extension, char[] password) throws Exception {
    KeyStore store = KeyStore.getInstance(extension.equals("jks") ? "JKS" : "PKCS12");
    try (InputStream in = Files.newInputStream(file)) {
      store.load(in, password);
    }
    return store;
  }

  private static void request(SSLContext context, String[] target) throws IOException {
    Socket plain = new Socket();
    plain.connect(new InetSocketAddress(target[1], Integer.parseInt(target[2])), TIMEOUT_MILLIS);
    plain.setSoTimeout(TIMEOUT_MILLIS);
    try (SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(plain, target[0], plain.getPort(), true)) {
      var parameters = socket.getSSLParameters();
      parameters.setEndpointIdentificationAlgorithm("HTTPS");
      socket.setSSLParameters(parameters);
      socket.startHandshake();
      String text = "GET / HTTP/1.1\r\nHost: " + target[0] + "\r\nConnection: close\r\n\r\n";
      try {
        socket.getOutputStream().write(text.getBytes(StandardCharsets.US_ASCII));
      } catch (IOException closed) {
        // A gateway that has refused the client may have closed the socket, but its alert can still be read.
      }
      String answer = new String(socket.getInputStream().readNBytes(12), StandardCharsets.US_ASCII);
      if (!answer.startsWith("HTTP/1.1 200")) {
        throw new IOException("expected 200, got " + answer);
      }
    }
  }

  /** Who ended the connection. */
  private static String side(Exception exception) {
    for (Throwable cause = exception; cause != null; cause = cause.getCause()) {
      if (cause instanceof CertPathValidatorException || cause.getClass().getSimpleName().equals("SunCertPathBuilderException")) {
        return "client";
      }
    }
    return String.valueOf(exception.getMessage()).contains("Received fatal alert") ? "gateway" : "broken";
  }
}
