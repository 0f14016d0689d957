import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog, over a SQLite file and S3; says where, and ends with its standard input. */
public class RestCatalog {
  public static void main(String[] args) throws Exception {
    Map<String, String> properties = new HashMap<>();
    properties.put("jdbc.schema-version", "V1");
    properties.put("io-impl", "org.apache.iceberg.aws.s3.S3FileIO");
    properties.put("http-client.type", "urlconnection");
    for (String arg : args) {
      String[] pair = arg.split("=", 2);
      properties.put(pair[0], pair[1]);
    }
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize("wings", properties);
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    System.out.println("ready http://127.0.0.1:" + connector.getLocalPort());
    while (System.in.read() >= 0) {}
    System.exit(0);
  }
}
