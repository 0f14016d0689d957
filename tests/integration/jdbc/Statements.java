import java.io.IOException;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;

/** Says what a server answers to Arrow's driver of JDBC: a line for each step; waits for one where it says so. */
public final class Statements {
  private static void waitForLine(String told) throws IOException {
    System.out.println(told);
    if (System.in.read() < 0) {
      System.exit(1);
    }
  }

  public static void main(String[] arguments) throws IOException, SQLException {
    String table = arguments[1];
    try (Connection connection = DriverManager.getConnection(arguments[0])) {
      DatabaseMetaData metadata = connection.getMetaData();
      System.out.println("product " + metadata.getDatabaseProductName());
      System.out.println(
          "transactions " + metadata.supportsTransactions() + " " + metadata.getDefaultTransactionIsolation()
              + " " + metadata.supportsTransactionIsolationLevel(Connection.TRANSACTION_SERIALIZABLE));
      System.out.println(
          "joins " + metadata.supportsOuterJoins() + " " + metadata.supportsFullOuterJoins()
              + " " + metadata.supportsLimitedOuterJoins());
      System.out.println(
          "others " + metadata.supportsUnionAll() + " " + metadata.supportsConvert()
              + " " + metadata.supportsConvert(Types.INTEGER, Types.VARCHAR) + " " + metadata.getMaxRowSize()
              + " " + metadata.supportsSubqueriesInQuantifieds() + " " + metadata.getSystemFunctions()
              + " " + metadata.supportsResultSetType(ResultSet.TYPE_FORWARD_ONLY));
      try (ResultSet tables = metadata.getTables("wings", "default", table, null)) {
        while (tables.next()) {
          System.out.println("table " + tables.getString("TABLE_SCHEM") + "." + tables.getString("TABLE_NAME"));
        }
      }
      try (ResultSet columns = metadata.getColumns("wings", "default", table, "%")) {
        while (columns.next()) {
          System.out.println("column " + columns.getString("COLUMN_NAME") + " " + columns.getInt("DATA_TYPE"));
        }
      }
      try (Statement statement = connection.createStatement();
          ResultSet rows = statement.executeQuery(
              "select n, text, __offset from \"" + table + "\" where n < 2 order by n")) {
        while (rows.next()) {
          System.out.println("row " + rows.getLong(1) + " " + rows.getString(2) + " " + rows.getLong("__offset"));
        }
      }
      try (PreparedStatement prepared =
          connection.prepareStatement("select text from \"" + table + "\" where n = ?")) {
        for (int n = 7; n < 9; n++) {
          prepared.setLong(1, n);
          try (ResultSet rows = prepared.executeQuery()) {
            while (rows.next()) {
              System.out.println("prepared " + rows.getString(1));
            }
          }
        }
      }
      try (PreparedStatement prepared = connection.prepareStatement(
          "select text, n from \"" + table + "\" where n between ? and ? and n / 2 < ? and text <> ?"
              + " and __timestamp > ? and __offset < ? order by n limit ?")) {
        System.out.println(
            "takes " + prepared.getParameterMetaData().getParameterCount()
                + " shows " + prepared.getMetaData().getColumnName(2));
        prepared.setInt(1, 3);
        prepared.setLong(2, 50);
        prepared.setDouble(3, 4.5);
        prepared.setString(4, "t3");
        prepared.setTimestamp(5, new Timestamp(0));
        prepared.setShort(6, (short) 90);
        prepared.setInt(7, 2);
        System.out.println("rows " + prepared.execute());
        try (ResultSet rows = prepared.getResultSet()) {
          while (rows.next()) {
            System.out.println("typed " + rows.getString(1) + " " + rows.getLong(2));
          }
        }
      }
      try (Statement statement = connection.createStatement()) {
        statement.executeQuery("delete from \"" + table + "\"");
      } catch (SQLException refused) {
        System.out.println("refused " + refused.getMessage().contains("SQL reads topics"));
      }
      try (Statement statement = connection.createStatement();
          ResultSet rows = statement.executeQuery("select a.i + b.i from range(10000000) a(i), range(10000000) b(i)")) {
        rows.next();
        statement.cancel();
        while (rows.next()) {
        }
        waitForLine("ended");
      } catch (SQLException cancelled) {
        waitForLine("cancelled");
      }
      try (Statement statement = connection.createStatement()) {
        statement.setQueryTimeout(1);
        statement.executeQuery("select sum(a.i * b.i) from range(10000000) a(i), range(10000000) b(i)");
      } catch (SQLException late) {
        waitForLine(late.getMessage().contains("SQLTimeoutException") ? "timed out" : late.toString());
      }
    }
  }
}
